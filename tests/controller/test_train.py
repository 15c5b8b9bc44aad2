"""One small run through every command, from a checkpoint as models are published: sampled, then trained although its trainer and
its engine are killed on the way."""

import json
import os
import signal
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from runs import SMALL, finish, gagar, start
from stored import write_stored

from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.init import random_tensors
from gagar_mcore.records.batch import Batch, read_batch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_json, read_manifest
from gagar_mcore.tracking.metrics import scan_metrics
from gagar_mcore.weights.files import read_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage

REPLAY = "trainer.routing=replay"
MTP_NORM = "model.mtp.layers.0.hnorm.weight"


def published_checkpoint(directory: Path) -> Path:
    """The shipped weights in FP8 with fused projections, in several files, with a layer of multi-token prediction that the
    configuration does not tell of."""
    shipped = shipped_checkpoint("tiny-mimo-v2")
    assert shipped is not None
    source = PublishedCheckpoint(shipped)
    model = replace(source.model, mtp_layers=1)
    fresh = random_tensors(model, seed=1)

    def read(name: str) -> torch.Tensor:
        return source.read(name) if name in source.shapes else fresh(name)

    storage = Storage(model, "fp8", "fused")
    write_stored(storage, read, read_companions(shipped), directory, max_bytes=300_000)
    config = json.loads((directory / "config.json").read_text())
    del config["num_nextn_predict_layers"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


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
    published = f"model.init={published_checkpoint(tmp_path / 'published')}"
    finish(gagar("rollout", "tiny", f"output={root}", *SMALL, REPLAY, published))
    recorded = read_manifest(layout.batch(1), "batch", verify=True)

    process = start(root, "--resume", "train.steps=2", REPLAY, published)
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
    first, last = (PublishedCheckpoint(layout.weights(version)) for version in (0, 2))
    assert last.model == first.model
    assert read_config(layout.weights(2)).mtp_layers == last.model.mtp_layers == 1  # which were not told of
    assert torch.equal(last.read(MTP_NORM), first.read(MTP_NORM))
    assert finish(gagar("report", str(root))).strip() == str(layout.report)
