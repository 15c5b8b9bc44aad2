"""One small run through every command: sampled, then trained although its trainer and its engine are killed on the way."""

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from runs import SMALL, finish, gagar, start

from gagar_mcore.records.batch import Batch, read_batch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_json, read_manifest
from gagar_mcore.tracking.metrics import scan_metrics

REPLAY = "trainer.routing=replay"


def kill_child(process: psutil.Process, module: str, after: Path, pattern: str, deadline_s: float = 120.0) -> None:
    """SIGKILL one descendant that runs `module`, once a file below `after` matches `pattern`."""
    deadline = time.monotonic() + deadline_s
    while not any(after.glob(pattern)):
        assert process.is_running(), "ended too early"
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.02)
    [victim, *_] = [child for child in process.children(recursive=True) if module in command_line(child)]
    os.kill(victim.pid, signal.SIGKILL)


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a sandbox that has just ended
        return []


def assert_read_tokens_have_experts(batch: Batch) -> None:
    """The engine has read each sequence up to the token that it drew last."""
    assert batch.experts is not None
    known = (batch.experts >= 0).all(axis=(1, 2))
    for begin, end in pairwise(batch.cu_seqlens):
        [*_, last] = np.flatnonzero(batch.loss_mask[begin:end])
        assert known[begin:end].tolist() == [place < last for place in range(end - begin)]


@pytest.mark.timeout(400)
def test_a_recorded_batch_is_trained_and_dead_children_are_replaced(tmp_path: Path) -> None:
    root = tmp_path / "a run"
    layout = RunLayout(root)
    finish(gagar("rollout", "tiny", f"output={root}", *SMALL, REPLAY))
    recorded = read_manifest(layout.batch(1), "batch", verify=True)

    process = start(root, "--resume", "train.steps=2", REPLAY)
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
        assert 0 < steps[step]["train/rollout_logprob_abs_diff"] < 1e-5
        assert steps[step]["train/router_agreement"] > 0.999  # 1 but where two experts score alike to the last digits
        batch, meta = read_batch(layout.batch(step))
        assert {int(v) for v in batch.weight_version[batch.loss_mask == 1]} == {step - 1}
        assert len(meta["trajectory_ids"]) == batch.num_sequences
        assert_read_tokens_have_experts(batch)
    assert read_json(layout.trainer_state) == {"applied": 2}
    read_manifest(layout.weights(2), "weights", verify=True)
    assert finish(gagar("report", str(root))).strip() == str(layout.report)
