"""What is made of the steps that ranks report."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.config.load import load_recipe
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import publish_directory
from gagar_mcore.sft.follow import Evaluation, Follower
from gagar_mcore.sft.train import STEPS
from gagar_mcore.tracking.metrics import MetricsLog, read_metrics
from gagar_mcore.tracking.tracker import open_tracker

REPORTED = {"sft/loss": 2.0, "sft/tokens_per_second": 10.0}


def follower(root: Path, evaluation: Evaluation, *changes: str) -> Follower:
    recipe = load_recipe("tiny-sft", ["sft.steps=6", "sft.eval_every=2", "tracking.wandb=off", f"output={root}", *changes])
    tracker = open_tracker(root, recipe.tracking, "x", {})
    return Follower(recipe, RunLayout(root), tracker, [evaluation])


def report(layout: RunLayout, *steps: int) -> None:
    log = MetricsLog(layout.root / STEPS)
    for step in steps:
        log.log(step, REPORTED)
    log.close()


def publish(path: Path, kind: str) -> None:
    def fill(directory: Path) -> dict[str, Any]:
        (directory / "file").write_text("x")
        return {}

    path.parent.mkdir(parents=True, exist_ok=True)
    publish_directory(path, kind, 0, fill)


async def number(checkpoint: Path, step: int) -> Mapping[str, float]:
    return {"kendall_tau": step / 10, "last": float(checkpoint.name == "checkpoint")}


def test_measured_steps_are_evaluated_and_each_step_is_logged_once_over_restarts(tmp_path: Path) -> None:
    first = follower(tmp_path, number)
    report(first.layout, 1, 2, 3)
    asyncio.run(first.log_new())
    first.tracker.close()
    second = follower(tmp_path, number)
    report(second.layout, 2, 3, 4, 5, 6)  # from a checkpoint after step 1
    asyncio.run(second.log_new())

    metrics = {int(line["step"]): line for line in read_metrics(tmp_path / "metrics.jsonl")}
    assert list(metrics) == [1, 2, 3, 4, 5, 6]
    agreement = {step: line["eval/kendall_tau"] for step, line in metrics.items() if "eval/kendall_tau" in line}
    assert agreement == {2: 0.2, 4: 0.4, 6: 0.6}
    assert [metrics[step]["eval/last"] for step in (4, 6)] == [0, 1]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6


def test_an_evaluation_that_hangs_costs_its_deadline_and_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def hang(checkpoint: Path, step: int) -> Mapping[str, float]:
        await asyncio.Event().wait()
        raise AssertionError

    following = follower(tmp_path, hang, "sft.eval_timeout_s=0.05")
    report(following.layout, 1, 2)
    asyncio.run(following.log_new())
    assert [line.get("eval/timed_out") for line in read_metrics(tmp_path / "metrics.jsonl")] == [None, 1.0]
    assert "step 2: not evaluated within sft.eval_timeout_s=0.05" in capsys.readouterr().out


def test_weights_and_checkpoints_are_kept_as_the_recipe_says(tmp_path: Path) -> None:
    following = follower(tmp_path, number, "retention.weights=1", "retention.checkpoints=2")
    for step in (2, 4):
        publish(following.layout.weights(step), "weights")
    for step in (1, 2, 3):
        publish(following.layout.checkpoint(step), "checkpoint")
    report(following.layout, 1)
    asyncio.run(following.log_new())
    assert [path.name for path in sorted((tmp_path / "weights").iterdir())] == ["0-000004"]
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["0-000002", "0-000003"]
    assert json.loads((tmp_path / STEPS).read_text())["step"] == 1
