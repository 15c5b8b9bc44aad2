"""Killed at any moment with SIGKILL, a run goes on: nothing is lost, nothing is applied twice, and the weights are bit-equal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import finish, kill_when, start, wait_for_end

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_json, read_manifest
from gagar_mcore.rollout.history import read_outcomes
from gagar_mcore.tracking.metrics import scan_metrics

STEPS = 3


def final_weights(root: Path) -> str:
    return read_manifest(RunLayout(root).weights(STEPS), "weights", verify=True).digest


def glob(root: Path, pattern: str) -> Callable[[], bool]:
    return lambda: any(root.glob(pattern))


@pytest.mark.kills
@pytest.mark.timeout(900)
def test_five_kills_leave_the_same_weights_as_an_undisturbed_run(tmp_path: Path) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    finish(start(calm))
    moments = [
        glob(rough, "tasks/.train.making.tmp/*"),  # while tasks are made
        glob(rough, "steps/000001/trajectories/*.json"),  # in the middle of a group
        glob(rough, "steps/000001/batch/manifest.json"),  # the trainer has just got its first batch
        glob(rough, "checkpoints/.*"),  # while a checkpoint is written
        glob(rough, "steps/000003/groups/*.json"),  # a group of the last step is done
    ]
    for index, moment in enumerate(moments):
        children = kill_when(start(rough, *(["--resume"] if index else [])), moment)
        assert wait_for_end(children) == []
    finish(start(rough, "--resume"))

    assert final_weights(rough) == final_weights(calm)
    layout = RunLayout(rough)
    assert len(json.loads(layout.epochs.read_text())) == len(moments) + 1
    assert sorted(scan_metrics(layout.metrics).steps) == list(range(STEPS + 1))
    assert not list(rough.rglob(".*.tmp"))
    for step in range(1, STEPS + 1):
        assert batch_digest(rough, step) == batch_digest(calm, step)
        assert trained(rough, step) == trained(calm, step)


@pytest.mark.kills
@pytest.mark.timeout(900)
def test_kills_neither_lose_nor_repeat_a_group_that_is_carried_over(tmp_path: Path) -> None:
    partial = ("deterministic=false", "rollout.partial=true", "rollout.concurrent_groups=5")
    moments = [
        glob(tmp_path, "steps/000001/batch/manifest.json"),
        glob(tmp_path, "steps/000002/collect.json"),  # groups have ended that the step before had begun; no batch has them yet
        glob(tmp_path, "steps/000003/.batch.*"),
    ]
    for index, moment in enumerate(moments):
        kill_when(start(tmp_path, *partial, *(["--resume"] if index else [])), moment)
    finish(start(tmp_path, *partial, "--resume"))

    layout = RunLayout(tmp_path)
    metas = [read_manifest(layout.batch(step), "batch", verify=True).meta for step in range(1, STEPS + 1)]
    assert any(meta["carried"] for meta in metas[:-1])
    trained = [owner for meta in metas for owner in sorted(set(meta["trajectory_ids"]))]
    assert len(set(trained)) == len(trained)
    begun = sum(place["begun"] for place in metas[-1]["next_position"].values())
    ended = [outcome for step in range(1, STEPS + 1) for outcome in read_outcomes(layout, step)]
    assert begun == len(ended) + len(metas[-1]["carried"])


def batch_digest(root: Path, step: int) -> dict[str, list[object]]:
    files: dict[str, list[object]] = json.loads((RunLayout(root).batch(step) / "manifest.json").read_text())["files"]
    return files


def trained(root: Path, step: int) -> dict[str, float]:
    metrics = read_json(RunLayout(root).step_metrics(step, "train"))
    return {name: metrics[name] for name in ("train/loss", "train/grad_norm", "train/lr", "train/sequences")}
