"""The batch of the step that is being collected: groups go to disk as they complete, and out of memory."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from gagar_mcore.credit import Aggregation
from gagar_mcore.records.batch import KIND
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import begin_directory, finish_directory
from gagar_mcore.rollout.batching import BatchBuilder
from gagar_mcore.rollout.group import FinishedGroup, read_trajectories
from gagar_mcore.rollout.samples import Cleanliness, sample_of


class StepBatch:
    """Fills a directory beside the batch's place and publishes it there, whole or not at all. Leaving the context deletes what
    was not published; what a killed process leaves is swept, and built anew from the groups on disk. in_order: the batch has
    its groups in the order of their draws, and not as they complete; then they are read back for it at the end."""

    def __init__(self, layout: RunLayout, step: int, is_clean: Cleanliness, in_order: bool) -> None:
        self._layout, self._step, self._is_clean, self._in_order = layout, step, is_clean, in_order
        self._directory = begin_directory(layout.batch(step))
        self._builder = BatchBuilder(self._directory, layout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._builder.abandon()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def take(self, finished: FinishedGroup) -> FinishedGroup:
        """The group with samples in the place of its trajectories, which are in the batch if it is kept."""
        return await asyncio.to_thread(self._take, finished)

    async def publish(
        self,
        kept: Sequence[FinishedGroup],
        aggregation: Aggregation,
        meta: dict[str, Any],
        epoch: int,
        fence: Callable[[], None],
    ) -> None:
        """kept: all that were taken and kept, in the order of their draws; meta: what the manifest says beside the batch."""
        await asyncio.to_thread(self._publish, kept, aggregation, meta, epoch, fence)

    def _take(self, finished: FinishedGroup) -> FinishedGroup:
        samples = [sample_of(finished.task, trajectory, self._is_clean) for trajectory in finished.trajectories]
        if finished.kept and not self._in_order:
            self._builder.append(finished.group, finished.trajectories)
        return replace(finished, trajectories=[], samples=samples)

    def _publish(
        self,
        kept: Sequence[FinishedGroup],
        aggregation: Aggregation,
        meta: dict[str, Any],
        epoch: int,
        fence: Callable[[], None],
    ) -> None:
        for finished in kept if self._in_order else ():
            self._builder.append(finished.group, read_trajectories(self._layout, finished.group))
        own, sums = self._builder.finish(aggregation)
        finish_directory(self._directory, self._layout.batch(self._step), KIND, epoch, own | meta, fence, sums)
