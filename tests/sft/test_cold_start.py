import json
import subprocess
import sys
from pathlib import Path

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.presets import preset
from gagar_mcore.records.store import read_manifest

SMALL = ["sft.steps=3", "sft.sequences_per_step=4", "tasks.heldout_count=2", "train.eval_samples=2"]


def test_the_cold_start_goes_from_nothing_to_a_measured_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gagar_mcore.cli", "sft", "tiny-sft", f"output={tmp_path / 'run'}", *SMALL]
    result = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    checkpoint = tmp_path / "run" / "checkpoint"
    read_manifest(checkpoint, "weights", verify=True)
    assert read_config(checkpoint) == preset("tiny")
    assert load_renderer(checkpoint).vocab_size == preset("tiny").vocab_size
    steps = [json.loads(line) for line in (tmp_path / "run" / "sft.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == [1, 2, 3]
    assert all(s["sft/loss"] > 0 for s in steps)
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["sessions"] == 4

    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, "already used" in again.stderr) == (1, True)
