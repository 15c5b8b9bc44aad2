"""The pipeline below is scripted: what is tested is which groups a step begins, keeps and counts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gagar_mcore.plan.virtual_time import run_virtually
from gagar_mcore.records.types import Credit, DropReason, Group
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.collect import Collection, CollectionError, collect
from gagar_mcore.rollout.group import FinishedGroup, GroupPipeline
from gagar_mcore.rollout.history import History
from gagar_mcore.rollout.scheduler import Scheduler
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Place, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task


def task(name: str) -> Task:
    return Task(name, Path(), "", Path(), Path(), (), ())


class Scripted:
    """Group k has outcome `outcomes[k]` (None: kept) and takes `delays[k]` seconds; the last entries repeat."""

    def __init__(self, outcomes: Sequence[DropReason | None], delays: Sequence[float] = (0.0,)) -> None:
        self.outcomes, self.delays = outcomes, delays
        self.running = self.most_running = 0

    async def run(self, step: int, index: int, task: Task, rank: Rank) -> FinishedGroup:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delays[min(index, len(self.delays) - 1)])
        finally:
            self.running -= 1
        dropped = self.outcomes[min(index, len(self.outcomes) - 1)]
        credit = Credit("gagar", dropped is None, dropped, None, 1.0, False, {})
        return FinishedGroup(Group(f"g{index}", step, task.id, [], None, credit), task, [])


ORDER = TaskOrder([task(f"t{i}") for i in range(5)], seed=3)
MIX = TaskMix([Source("", ORDER)])


async def take(group: FinishedGroup) -> FinishedGroup:
    return group


def run(scripted: Scripted, wanted: int = 3, most: int = 8, concurrent: int = 8, outage_wait_s: float = 0.0) -> Collection:
    pipeline = cast(GroupPipeline, scripted)
    scheduler = Scheduler(concurrent, 3, Breaker(3, outage_wait_s))
    position = {"": Place(start=10)}
    return run_virtually(collect(scheduler, pipeline, MIX, History(2, 3), 1, position, wanted, most, take))


def test_no_more_groups_are_begun_than_are_needed() -> None:
    scripted = Scripted([None])
    collection = run(scripted)
    assert [g.group.id for g in collection.groups] == ["g0", "g1", "g2"]
    assert collection.next_position == {"": Place(start=13, begun=3)}
    assert scripted.most_running == 3


@pytest.mark.parametrize("delays", [(0.0,), (0.03, 0.0, 0.01, 0.0), (0.0, 0.02, 0.0, 0.03)], ids=str)
def test_the_set_of_groups_does_not_depend_on_which_ends_first(delays: Sequence[float]) -> None:
    collection = run(Scripted(["all_fail", None, "all_pass", None, None], delays))
    assert [g.group.id for g in collection.groups] == ["g0", "g1", "g2", "g3", "g4"]
    assert [g.group.id for g in collection.kept] == ["g1", "g3", "g4"]
    assert dict(collection.dropped()) == {"all_fail": 1, "all_pass": 1}
    assert [g.task.id for g in collection.groups] == [ORDER.task(10 + i).id for i in range(5)]


def test_a_filter_that_drops_nearly_everything_stops_at_the_bound() -> None:
    collection = run(Scripted(["all_fail", None, "all_fail"]), most=6)
    assert (len(collection.groups), len(collection.kept)) == (6, 1)


def test_a_filter_that_drops_everything_is_an_error_with_the_counts() -> None:
    with pytest.raises(CollectionError, match=r"none of 8 groups had mixed outcomes \(2 all_fail, 6 too_few_valid\)"):
        run(Scripted(["all_fail", "all_fail", "too_few_valid"]))


def test_an_outage_is_waited_out_and_costs_no_group() -> None:
    class Outage(Scripted):
        calls = 0

        async def run(self, step: int, index: int, task: Task, rank: Rank) -> FinishedGroup:
            self.calls += 1
            self.outcomes = ["too_few_valid"] if self.calls <= 3 else [None]
            return await super().run(step, index, task, rank)

    scripted = Outage([None])
    collection = run(scripted, outage_wait_s=5.0)
    assert [g.group.id for g in collection.kept] == ["g0", "g1", "g2"]
    assert scripted.calls == 6


def test_concurrency_is_bounded() -> None:
    scripted = Scripted([None], (0.01,))
    run(scripted, concurrent=2)
    assert scripted.most_running == 2


def test_one_broken_group_ends_the_step_and_leaves_nothing_running() -> None:
    class Broken(Scripted):
        async def run(self, step: int, index: int, task: Task, rank: Rank) -> Any:
            if index == 1:
                raise RuntimeError("bug")
            return await super().run(step, index, task, rank)

    scripted = Broken([None], (5.0,))
    with pytest.raises(RuntimeError, match="bug"):
        run(scripted)
    assert scripted.running == 0


def test_task_order_visits_every_task_once_a_pass_and_depends_on_the_seed() -> None:
    tasks = [task(f"t{i}") for i in range(20)]
    order = TaskOrder(tasks, seed=1)
    passes = [[order.task(p).id for p in range(start, start + 20)] for start in (0, 20)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(t.id for t in tasks)
    assert passes[0] != passes[1]
    assert [TaskOrder(tasks, seed=1).task(p).id for p in range(20)] == passes[0]
    assert [TaskOrder(tasks, seed=2).task(p).id for p in range(20)] != passes[0]
