"""Dynamic sampling: groups are sampled until the step has its number of mixed ones, within a bound."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gagar_mcore.rollout.group import FinishedGroup, GroupPipeline
from gagar_mcore.tasks.order import TaskOrder


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
    progress: Callable[[int, Counter[str]], None] = lambda kept, dropped: None,
) -> Collection:
    """Sample groups from data position `position` until `wanted` are kept or `most` were tried.

    A group is begun only when fewer than `wanted` are kept or running, so the set of groups depends on their outcomes and
    never on which ended first. Raises CollectionError where not one group was kept."""
    finished: dict[int, FinishedGroup] = {}
    running: dict[asyncio.Task[FinishedGroup], int] = {}
    indices: Iterator[int] = iter(range(most))
    kept, dropped = 0, Counter[str]()
    try:
        while True:
            while len(running) < min(concurrent, wanted - kept) and (index := next(indices, None)) is not None:
                running[asyncio.create_task(pipeline.run(step, index, order.task(position + index)))] = index
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
        raise CollectionError(f"step {step}: none of {len(finished)} groups had mixed outcomes ({reasons})")
    return collection
