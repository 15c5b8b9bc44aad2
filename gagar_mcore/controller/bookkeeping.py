"""What a run keeps in order beside its steps: metrics, report, retention, room on the disk."""

import asyncio
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from gagar_mcore.controller.run import Run
from gagar_mcore.records.batch import EXPERT_INDEX
from gagar_mcore.records.expert_index import stored_files
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import MANIFEST, read_json, unpublish_directory
from gagar_mcore.tracking.console import Console
from gagar_mcore.tracking.metrics import Metrics, scan_metrics
from gagar_mcore.tracking.tracker import open_tracker
from gagar_mcore.viewer.report import write_report

DISK_POLL_SECONDS = 5.0


class DiskFull(RuntimeError):
    """The disk stayed too full for longer than the recipe allows."""


def recorded_metrics(layout: RunLayout, step: int) -> Metrics:
    """All that the stages of `step` have published; step 0 is the evaluation of the initial policy."""
    parts = [layout.step_metrics(step, part) for part in ("collect", "train", "load")]
    metrics = {name: value for part in parts if part.exists() for name, value in read_json(part).items()}
    if "train/seconds" in metrics:
        metrics["time/train"] = metrics["train/seconds"]
    if (summary := layout.evaluation(step) / "summary.json").exists():
        metrics |= {f"eval/{name}": value for name, value in read_json(summary).items()}
    return metrics


class Bookkeeper:
    """Logs each step once, from what is published, so that a restart logs what a kill left unlogged."""

    def __init__(self, run: Run, console: Console) -> None:
        self._run, self._console = run, console
        self._tracker = open_tracker(
            run.layout.root, run.recipe.tracking, run.recipe.name, run.recipe.model_dump(mode="json"), console.message
        )
        self._logged = max(scan_metrics(run.layout.metrics).steps, default=-1)

    def __enter__(self) -> Self:
        for step, metrics in scan_metrics(self._run.layout.metrics).steps.items():
            self._console.step_finished(step, metrics)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tracker.close()
        write_report(self._run.layout.root)

    def log_through(self, step: int) -> None:
        """Log every step up to `step` that is not logged yet."""
        for number in range(self._logged + 1, step + 1):
            metrics = recorded_metrics(self._run.layout, number)
            self._tracker.log(number, metrics)
            self._console.step_finished(number, metrics)
        self._logged = max(self._logged, step)

    def tidy(self, step: int, oldest: int | None = None) -> None:
        """Delete what lies beyond the retention of the recipe: never the newest weights or checkpoint, nor the initial weights,
        from which a run without a checkpoint starts again, nor a step that no checkpoint covers, or from which groups are still
        under way, the first of which is `oldest`."""
        keep, layout = self._run.recipe.retention, self._run.layout
        for folder, count in (("weights", keep.weights), ("deltas", keep.weights), ("checkpoints", keep.checkpoints)):
            for path in _published(layout, folder)[: -count or None] if count else []:
                if (0, 0) < _place(path.name) < (current_lineage(layout), step):
                    unpublish_directory(path)
        if keep.steps:
            covered = max((_place(path.name)[1] for path in _published(layout, "checkpoints")), default=0)
            first_kept = min(covered, step - keep.steps, step if oldest is None else oldest - 1) + 1
            for old in range(1, first_kept):
                _delete_experts(layout.batch(old), [layout.batch(kept) for kept in range(first_kept, step + 1)])
                _delete_step(layout, old)

    async def wait_for_disk(self) -> None:
        """Pause while less than `retention.min_free_disk_mb` is free. Raises DiskFull after `retention.disk_wait_s`."""
        keep = self._run.recipe.retention
        deadline = time.monotonic() + keep.disk_wait_s
        told = False
        while (free := shutil.disk_usage(self._run.layout.root).free >> 20) < keep.min_free_disk_mb:
            shortage = f"{self._run.layout.root}: {free} MB free, retention.min_free_disk_mb asks for {keep.min_free_disk_mb}"
            if time.monotonic() > deadline:
                raise DiskFull(shortage)
            if not told:
                self._console.message(f"paused: {shortage}")
                told = True
            await asyncio.sleep(min(DISK_POLL_SECONDS, keep.disk_wait_s))


def _published(layout: RunLayout, folder: str) -> list[Path]:
    """Published directories of all lineages, oldest first."""
    return sorted((m.parent for m in (layout.root / folder).glob(f"[0-9]*/{MANIFEST}")), key=lambda path: _place(path.name))


def _delete_step(layout: RunLayout, step: int) -> None:
    """What a step holds in bulk; its groups, verdicts and metrics stay."""
    if (layout.batch(step) / MANIFEST).is_file():
        unpublish_directory(layout.batch(step))
    for name in ("trajectories", "workspaces"):
        shutil.rmtree(layout.step(step) / name, ignore_errors=True)


def _delete_experts(batch: Path, kept: list[Path]) -> None:
    """The files of stored experts that `batch` refers to and none of `kept`, if they have not grown since it was published."""
    if not (batch / EXPERT_INDEX).is_file():
        return
    needed = {file for other in kept for file in stored_files(other / EXPERT_INDEX)}
    published = (batch / MANIFEST).stat().st_mtime
    for file in stored_files(batch / EXPERT_INDEX):
        if file not in needed and file.is_file() and file.stat().st_mtime < published:
            file.unlink()


def _place(name: str) -> tuple[int, int]:
    lineage, number = name.split("-")
    return int(lineage), int(number)
