"""One small run through every command: sampled, then trained although its trainer and its engine are killed on the way."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from runs import SMALL, finish, gagar, start

from gagar_mcore.records.batch import read_batch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_json, read_manifest
from gagar_mcore.tracking.metrics import scan_metrics


def kill_child(process: psutil.Process, module: str, after: Path, pattern: str, deadline_s: float = 120.0) -> None:
    """SIGKILL one descendant that runs `module`, once a file below `after` matches `pattern`."""
    deadline = time.monotonic() + deadline_s
    while not any(after.glob(pattern)):
        assert process.is_running(), "ended too early"
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.02)
    [victim, *_] = [child for child in process.children(recursive=True) if module in child.cmdline()]
    os.kill(victim.pid, signal.SIGKILL)


@pytest.mark.timeout(400)
def test_a_recorded_batch_is_trained_and_dead_children_are_replaced(tmp_path: Path) -> None:
    root = tmp_path / "a run"
    layout = RunLayout(root)
    finish(gagar("rollout", "tiny", f"output={root}", *SMALL))
    recorded = read_manifest(layout.batch(1), "batch", verify=True)

    process = start(root, "--resume", "train.steps=2")
    running = psutil.Process(process.pid)
    kill_child(running, "gagar_mcore.trainer.main", root, "weights/0-000001/manifest.json")
    kill_child(running, "gagar_mcore.engine.worker", root, "steps/000002/trajectories/*.json")
    output = finish(process)

    assert read_manifest(layout.batch(1), "batch", verify=True) == recorded
    assert "held-back" in output
    assert layout.report.is_file()
    steps = scan_metrics(layout.metrics).steps
    assert sorted(steps) == [0, 1, 2]
    assert "eval/pass_rate" in steps[0]
    for step in (1, 2):
        assert 0 < steps[step]["train/rollout_logprob_abs_diff"] < 1e-3
        batch, meta = read_batch(layout.batch(step))
        assert {int(v) for v in batch.weight_version[batch.loss_mask == 1]} == {step - 1}
        assert len(meta["trajectory_ids"]) == batch.num_sequences
    assert read_json(layout.trainer_state) == {"applied": 2}
    read_manifest(layout.weights(2), "weights", verify=True)
    assert finish(gagar("report", str(root))).strip() == str(layout.report)
