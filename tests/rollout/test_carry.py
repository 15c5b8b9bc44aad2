"""Groups below are scripted and time is virtual: what is tested is which groups a step leaves, and what becomes of them."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from gagar_mcore.plan.virtual_time import run_virtually
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.carry import Carried, Carry, Left
from gagar_mcore.rollout.scheduler import Ended, Scheduler
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task

TASKS = [Task(f"t{i}", Path(), "", Path(), Path(), (), ()) for i in range(40)]
MIX = TaskMix([Source("", TaskOrder(TASKS, 1))])


@dataclass(frozen=True)
class Result:
    place: tuple[int, int]
    dropped: str | None = None

    @property
    def kept(self) -> bool:
        return self.dropped is None


@dataclass
class Run:
    """A run whose group `index` takes `seconds(index)`; each begun group has an index of its own."""

    seconds: Callable[[int], float]
    carry: Carry[Result] = field(default_factory=lambda: Carry(4))
    concurrent: int = 4
    begun: list[tuple[int, int]] = field(default_factory=list)
    cancelled: list[tuple[int, int]] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    _draws: Iterator[Draw] = field(default_factory=lambda: MIX.draws({}))

    async def group(self, draw: Draw, rank: Rank) -> Result:
        self.begun.append((draw.step, draw.index))
        try:
            await asyncio.sleep(self.seconds(draw.index))
        except asyncio.CancelledError:
            self.cancelled.append((draw.step, draw.index))
            raise
        return Result((draw.step, draw.index))

    async def take(self, result: Result) -> Result:
        self.taken.append(result.place)
        return result

    async def step(self, number: int, wanted: int, most: int = 100) -> list[tuple[int, int]]:
        scheduler = Scheduler(self.concurrent, 3, Breaker(3, 0.0))
        draws = (replace(draw, step=number) for draw in self._draws)
        ended: list[Ended[Result]] = await scheduler.step(self.group, draws, wanted, most, take=self.take, carry=self.carry)
        return [e.result.place for e in ended]


def test_a_long_tail_holds_up_no_step_and_is_in_a_later_batch_once() -> None:
    run = Run(lambda index: 35.0 if index == 0 else 10.0)

    steps: list[list[tuple[int, int]]] = []
    ends: list[float] = []

    async def main() -> None:
        for number in range(1, 5):
            await run.carry.begin(number)
            steps.append(await run.step(number, wanted=3))
            ends.append(asyncio.get_running_loop().time())
        await run.carry.close()

    run_virtually(main())
    assert ends == pytest.approx([10.0, 20.0, 30.0, 40.0])
    assert (1, 0) in steps[3] and all((1, 0) not in step for step in steps[:3])
    ended = [place for step in steps for place in step]
    assert len(set(ended)) == len(ended) == 12
    assert sorted(run.taken) == sorted(ended)
    assert set(ended) <= set(run.begun) and len(set(run.begun)) == len(run.begun)


def test_no_more_are_kept_than_are_wanted_and_the_rest_waits_with_its_result() -> None:
    run = Run(lambda index: 10.0)

    async def main() -> tuple[list[tuple[int, int]], list[Carried], list[tuple[int, int]]]:
        first = await run.step(1, wanted=2)
        carried = run.carry.carried()
        return first, carried, await run.step(2, wanted=2)

    first, carried, second = run_virtually(main())
    assert (len(first), len(second)) == (2, 2)
    assert [(c.step, c.index) for c in carried[:2]] == second  # done already, so they are first
    assert not set(first) & set(second)


def test_groups_that_are_too_old_are_given_up_and_counted() -> None:
    run = Run(lambda index: 1e6 if index < 2 else 10.0, carry=Carry(2))

    async def main() -> list[int]:
        expired = []
        for number in range(1, 6):
            expired.append(await run.carry.begin(number))
            await run.step(number, wanted=2)
        await run.carry.close()
        return expired

    assert run_virtually(main()) == [0, 0, 0, 2, 0]
    assert {(1, 0), (1, 1)} <= set(run.cancelled)


def test_a_group_that_waits_for_its_quota_does_not_become_too_old_before_it_is_begun() -> None:
    order = TaskOrder(TASKS, 1)
    mix = TaskMix([Source("slow", order, quota=1), Source("fast", order)])
    run = Run(lambda index: 10.0, carry=Carry(7), concurrent=24, _draws=mix.draws({}))
    late: list[int] = []

    async def main() -> list[int]:
        expired = []
        for number in range(1, 31):
            expired.append(await run.carry.begin(number))
            late.extend(number - step for step, _ in await run.step(number, wanted=4))
        carried = run.carry.carried()
        assert {c.begun is None for c in carried if (c.step, c.index) not in run.begun} == {True}
        assert all(c.begun is not None and c.begun >= c.step for c in carried if (c.step, c.index) in run.begun)
        await run.carry.close()
        return expired

    assert run_virtually(main()) == [0] * 30
    assert max(late) > 7


def test_what_was_left_goes_on_in_another_process_under_its_own_number() -> None:
    """Of those killed at work, and of those drawn that were never begun."""
    first = Run(lambda index: 10.0 if index < 2 else 1e6)

    async def killed() -> list[Carried]:
        await first.step(1, wanted=2)
        carried = first.carry.carried()
        await first.carry.close()
        return carried

    carried = run_virtually(killed())
    assert [(c.step, c.index) for c in carried] == [(1, 2), (1, 3)]
    left: list[Left[Result]] = [Left(MIX.again(c.step, c.index, c.task), begun=c.begun) for c in carried]
    assert [each.draw.task.key for each in left] == [c.task for c in carried]
    second = Run(lambda index: 10.0, carry=Carry(4, left))

    async def resumed() -> list[tuple[int, int]]:
        return await second.step(2, wanted=4)

    ended = run_virtually(resumed())
    assert ended[:2] == [(1, 2), (1, 3)] and len(ended) == 4
    assert second.begun[:2] == [(1, 2), (1, 3)]


def test_a_task_that_is_gone_is_an_error_by_name() -> None:
    with pytest.raises(ValueError, match="task t99: a group of step 3 is under way"):
        MIX.again(3, 0, "t99")


def test_an_error_of_a_carried_group_ends_the_step_that_meets_it() -> None:
    numbers = count()

    class Broken(Run):
        async def group(self, draw: Draw, rank: Rank) -> Result:
            if next(numbers) == 3:
                await asyncio.sleep(15.0)
                raise RuntimeError("bug")
            return await super().group(draw, rank)

    run = Broken(lambda index: 10.0)

    async def main() -> None:
        await run.step(1, wanted=3)
        await run.step(2, wanted=3)

    with pytest.raises(RuntimeError, match="bug"):
        run_virtually(main())
