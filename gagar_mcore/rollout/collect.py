"""Dynamic sampling: groups are sampled until the step has its number of mixed ones, within a bound."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gagar_mcore.rollout.group import FinishedGroup, GroupPipeline
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task

LONGEST_PAUSE_S = 60.0


class CollectionError(RuntimeError):
    """A step found no usable group within its bound; the message counts the reasons."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Every group that a step sampled, in task order. `next_position` is the data position after it."""

    step: int
    groups: list[FinishedGroup]
    next_position: int

    @property
    def kept(self) -> list[FinishedGroup]:
        return [g for g in self.groups if g.group.credit.kept]

    def dropped(self) -> Counter[str]:
        return Counter(str(g.group.credit.dropped) for g in self.groups if not g.group.credit.kept)


async def collect(
    pipeline: GroupPipeline,
    order: TaskOrder,
    step: int,
    position: int,
    wanted: int,
    most: int,
    concurrent: int,
    outage_wait_s: float = 0.0,
    progress: Callable[[int, Counter[str]], None] = lambda kept, dropped: None,
) -> Collection:
    """Sample groups from data position `position` until `wanted` are kept or `most` were tried.

    A group is begun only when fewer than `wanted` are kept or running, so the set of groups depends on their outcomes and
    never on which ended first. One that the infrastructure left without enough valid trajectories is sampled again, with growing
    pauses, for `outage_wait_s`. Raises CollectionError where not one group was kept."""
    finished: dict[int, FinishedGroup] = {}
    running: dict[asyncio.Task[FinishedGroup], int] = {}
    indices: Iterator[int] = iter(range(most))
    kept, dropped = 0, Counter[str]()
    try:
        while True:
            while len(running) < min(concurrent, wanted - kept) and (index := next(indices, None)) is not None:
                group_task = order.task(position + index)
                running[asyncio.create_task(_persistently(pipeline, step, index, group_task, outage_wait_s))] = index
            if not running:
                break
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                group = finished[running.pop(task)] = await task
                kept += group.group.credit.kept
                dropped.update([] if group.group.credit.kept else [str(group.group.credit.dropped)])
            progress(kept, dropped)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    collection = Collection(step, [finished[i] for i in sorted(finished)], position + len(finished))
    if kept == 0:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items()))
        mend = "raise rollout.oversample and resume, or end the run here"
        raise CollectionError(f"step {step}: none of {len(finished)} groups had mixed outcomes ({reasons}); {mend}")
    return collection


async def _persistently(pipeline: GroupPipeline, step: int, index: int, task: Task, outage_wait_s: float) -> FinishedGroup:
    """A group; while an outage lasts, sampled again after pauses of 1, 2, 4 ... seconds, at most a minute each."""
    deadline, pause = time.monotonic() + outage_wait_s, 1.0
    while True:
        group = await pipeline.run(step, index, task)
        if group.group.credit.dropped != "too_few_valid" or time.monotonic() + pause > deadline:
            return group
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
