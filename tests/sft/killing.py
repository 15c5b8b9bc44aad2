"""The ranks of a fine-tuning, killed at a step of the test's choice."""

import os
import signal
import subprocess
from pathlib import Path

from gagar_mcore.config.load import load_recipe
from gagar_mcore.sft.run import interpreter
from gagar_mcore.sft.start import own_run, prepare_data, starting_point


def run_killed(recipe_file: Path, overrides: list[str], before: int) -> Path:
    """Begin the recipe's fine-tuning as `run_sft` does; every rank is killed before it takes step `before` (from 0). Returns the
    run directory, which a restart takes over."""
    recipe = load_recipe(str(recipe_file), overrides)
    with own_run(recipe, resume=False) as (layout, epoch):
        start = starting_point(recipe, layout, epoch)
        prepare_data(recipe, layout, start, epoch)
        script = Path(__file__).with_name("killed_rank.py")
        with interpreter(recipe) as (python, environment):
            command = [
                *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={recipe.trainer.world_size}"),
                *("--max-restarts=0", str(script), str(layout.root), "--init", str(start), "--epoch", str(epoch)),
            ]
            environment = os.environ | environment | {"KILLED_BEFORE": str(before)}
            done = subprocess.run(command, env=environment, capture_output=True, timeout=500, check=False)
        assert done.returncode and f"Signal {int(signal.SIGKILL)}" in done.stderr.decode(), done.stderr.decode()
    return layout.root
