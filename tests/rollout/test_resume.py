"""Runs that are killed at any moment. Groups are scripted, time is virtual, and a dict holds what is published."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.plan.virtual_time import run_virtually
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.carry import Carried, Carry, Left
from gagar_mcore.rollout.history import History, TaskOutcome
from gagar_mcore.rollout.scheduler import Ended, Scheduler
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw, Position, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task

STEPS, MEMBERS = 4, 4


@dataclass(frozen=True)
class Result:
    task: str
    passed: int

    @property
    def dropped(self) -> str | None:
        return {0: "all_fail", MEMBERS: "all_pass"}.get(self.passed)

    @property
    def kept(self) -> bool:
        return self.dropped is None


@dataclass(frozen=True)
class Batch:
    position: Position
    carried: list[Carried]
    ended: list[tuple[int, int, str]]
    expired: int
    outcomes: list[TaskOutcome]


@dataclass
class Run:
    mix: TaskMix
    concurrent: int
    wanted: int
    partial: bool
    groups: dict[tuple[int, int], Result] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    async def group(self, draw: Draw, rank: Rank) -> Result:
        place = (draw.step, draw.index)
        if place not in self.groups:
            rng = Random(f"{place} {draw.task.key}")
            await asyncio.sleep(rng.lognormvariate(2.0, 1.0))
            self.groups[place] = Result(draw.task.key, rng.choice([0, 2, 2, MEMBERS]))
        assert self.groups[place].task == draw.task.key  # what is on disk is of the same task
        return self.groups[place]

    async def go_on(self) -> None:
        """From the last batch to the end."""
        history = History(MEMBERS, 3)
        for batch in self.batches:
            history.add(batch.outcomes)
        before = self.batches[-1].carried if self.batches else []
        left: list[Left[Result]] = [Left(self.mix.again(c.step, c.index, c.task), begun=c.begun) for c in before]
        carry = Carry(2, left) if self.partial else None
        try:
            while len(self.batches) < STEPS:
                await self._step(carry, history)
        finally:
            if carry:
                await carry.close()

    async def _step(self, carry: Carry[Result] | None, history: History) -> None:
        number, after = len(self.batches) + 1, self.batches[-1].position if self.batches else {}
        expired = await carry.begin(number) if carry else 0

        def draws(position: Position) -> Iterator[Draw]:
            nonlocal after
            for draw in self.mix.draws(position, history.forecast):
                after = draw.after
                yield replace(draw, step=number)

        scheduler = Scheduler(self.concurrent, 3, Breaker(3, 600.0))
        ended: list[Ended[Result]] = await scheduler.step(self.group, draws(after), self.wanted, 2 * self.wanted, carry=carry)
        outcomes = [TaskOutcome(e.draw.task.key, e.result.passed, MEMBERS, 1, 0) for e in ended]
        history.add(outcomes)
        await asyncio.sleep(1.0)  # a kill here finds all groups on disk, and no batch
        places = [(e.draw.step, e.draw.index, e.draw.task.key) for e in ended]
        self.batches.append(Batch(after, carry.carried() if carry else [], places, expired, outcomes))

    def killed_after(self, seconds: float) -> None:
        async def main() -> None:
            run = asyncio.create_task(self.go_on())
            await asyncio.wait({run}, timeout=seconds)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtually(main())


def source(name: str, tasks: int, **more: Any) -> Source:
    made = [Task(f"t{i}", Path(), "", Path(), Path(), (), (), source=name) for i in range(tasks)]
    return Source(name, TaskOrder(made, 7), **more)


@settings(max_examples=60)
@given(
    window=st.sampled_from([1, 3, 32]),
    quota=st.sampled_from([None, 1]),
    concurrent=st.integers(1, 8),
    wanted=st.integers(1, 5),
    partial=st.booleans(),
    kills=st.lists(st.floats(0.0, 120.0), max_size=4),
)
def test_a_run_that_is_killed_neither_skips_nor_repeats_a_task(
    window: int, quota: int | None, concurrent: int, wanted: int, partial: bool, kills: list[float]
) -> None:
    mix = TaskMix([source("a", 60, quota=quota, priority=1), source("b", 50, weight=2.0)], window)
    run, whole = (Run(mix, concurrent, wanted, partial) for _ in range(2))
    for seconds in kills:
        run.killed_after(seconds)
    run_virtually(run.go_on())
    run_virtually(whole.go_on())
    ended = [place for batch in run.batches for place in batch.ended]
    left = [(c.step, c.index, c.task) for c in run.batches[-1].carried]
    assert len({task for _, _, task in ended + left}) == len(ended + left)  # none twice, within a pass
    begun = sum(place.begun for place in run.batches[-1].position.values())
    assert begun == len(ended) + len(left) + sum(batch.expired for batch in run.batches)
    if not partial:  # the groups of a step depend on their outcomes alone
        assert [batch.ended for batch in run.batches] == [batch.ended for batch in whole.batches]
