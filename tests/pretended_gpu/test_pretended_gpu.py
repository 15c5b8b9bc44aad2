"""What runs on a GPU keeps its tensors together: shown on a pretended one, in processes of their own."""

import subprocess
import sys
from pathlib import Path

from gagar_mcore.config.shipped import shipped_checkpoint


def run(script: str, *arguments: object) -> None:
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_engine_has_all_of_a_pass_on_its_device() -> None:
    run("engine_elsewhere.py", shipped_checkpoint("tiny-mimo-v2"))


def test_the_trainer_has_all_of_a_micro_batch_on_its_device() -> None:
    run("trainer_elsewhere.py")
