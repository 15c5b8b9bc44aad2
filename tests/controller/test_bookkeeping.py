"""Retention, room on the disk, and metrics that a restart makes up for."""

import asyncio
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.bookkeeping import Bookkeeper, DiskFull
from gagar_mcore.controller.run import Run, open_run
from gagar_mcore.records.store import publish_directory, publish_json
from gagar_mcore.tracking.console import Console
from gagar_mcore.tracking.metrics import scan_metrics

OVERRIDES = ["tracking.wandb=off", "retention.weights=2", "retention.checkpoints=1", "train.steps=5"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with open_run(load_recipe("tiny", [f"output={tmp_path / 'run'}", *OVERRIDES]), resume=False) as run:
        yield run


def bookkeeper(run: Run) -> Bookkeeper:
    return Bookkeeper(run, Console("test", run.recipe.train.steps, StringIO()))


def publish(path: Path, kind: str) -> None:
    publish_directory(path, kind, 1, lambda directory: {"size": (directory / "file").write_text("x")})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_weights_and_checkpoints_and_the_initial_weights_are_kept(run: Run) -> None:
    for version in range(1, 6):
        publish(run.layout.weights(version), "weights")
    for step in (2, 4):
        publish(run.layout.checkpoint(step), "checkpoint")
    with bookkeeper(run) as books:
        books.tidy(5)
    assert names(run.layout.root / "weights") == ["0-000000", "0-000004", "0-000005"]
    assert names(run.layout.root / "checkpoints") == ["0-000004"]


def test_a_restart_logs_what_a_kill_left_unlogged_and_nothing_twice(run: Run) -> None:
    for step in (1, 2):
        publish_json(run.layout.step_metrics(step, "train"), {"train/loss": float(step)}, 1)
    with bookkeeper(run) as books:
        books.log_through(1)
    with bookkeeper(run) as books:
        books.log_through(2)
    assert len(run.layout.metrics.read_text().splitlines()) == 3
    assert {step: m.get("train/loss") for step, m in scan_metrics(run.layout.metrics).steps.items()} == {0: None, 1: 1.0, 2: 2.0}
    assert run.layout.report.is_file()


def test_a_disk_that_stays_too_full_ends_the_run_with_the_field_to_change(tmp_path: Path) -> None:
    full = ["retention.min_free_disk_mb=1000000000", "retention.disk_wait_s=0.001"]
    recipe = load_recipe("tiny", [f"output={tmp_path / 'run'}", *OVERRIDES, *full])
    with (
        open_run(recipe, resume=False) as run,
        bookkeeper(run) as books,
        pytest.raises(DiskFull, match=r"retention\.min_free_disk_mb"),
    ):
        asyncio.run(books.wait_for_disk())


@pytest.mark.parametrize(("oldest", "kept"), [(None, [3, 4]), (4, [3, 4]), (2, [2, 3, 4]), (1, [1, 2, 3, 4])])
def test_old_steps_are_deleted_in_bulk_once_a_checkpoint_covers_them_and_none_of_their_groups_is_under_way(
    tmp_path: Path, oldest: int | None, kept: list[int]
) -> None:
    recipe = load_recipe("tiny", [f"output={tmp_path / 'run'}", *OVERRIDES, "retention.steps=1"])
    with open_run(recipe, resume=False) as run:
        for step in range(1, 5):
            publish(run.layout.batch(step), "batch")
            publish_json(run.layout.trajectory(step, "t"), {}, 1)
            publish_json(run.layout.group(step, "g"), {}, 1)
        publish(run.layout.checkpoint(2), "checkpoint")
        with bookkeeper(run) as books:
            books.tidy(4, oldest)
        left = [step for step in range(1, 5) if run.layout.batch(step).exists()]
        assert left == [step for step in range(1, 5) if (run.layout.step(step) / "trajectories").exists()] == kept
        assert all(run.layout.group(step, "g").exists() for step in range(1, 5))
