"""Groups below are scripted and time is virtual: what is tested is which are begun, when, and which are given up."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gagar_mcore.plan.virtual_time import run_virtually
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.scheduler import FAILED, Ended, Scheduler
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw, Forecast, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task


def task(name: str, source: str = "") -> Task:
    return Task(name, Path(), "", Path(), Path(), (), (), source=source)


def source(name: str, tasks: int = 40, weight: float = 1.0, quota: int | None = None, priority: int = 0) -> Source:
    return Source(name, TaskOrder([task(f"t{i}", name) for i in range(tasks)], 1), weight, quota, priority)


@dataclass(frozen=True)
class Result:
    dropped: str | None = None

    @property
    def kept(self) -> bool:
        return self.dropped is None


@dataclass
class Cluster:
    """A group takes `seconds` of its draw and is failed where `down(draw, seconds since the start)` says so."""

    down: Callable[[Draw, float], bool] = lambda draw, now: False
    seconds: Callable[[Draw], float] = lambda draw: 10.0
    begun: list[tuple[float, Draw]] = field(default_factory=list)
    at_work: list[Draw] = field(default_factory=list)
    most_at_work: int = 0

    async def run(self, draw: Draw, rank: Rank) -> Result:
        loop = asyncio.get_running_loop()
        self.begun.append((loop.time(), draw))
        self.at_work.append(draw)
        self.most_at_work = max(self.most_at_work, len(self.at_work))
        await asyncio.sleep(1.0 if self.down(draw, loop.time()) else self.seconds(draw))
        self.at_work.remove(draw)
        return Result(FAILED if self.down(draw, loop.time()) else None)

    @property
    def names(self) -> list[str]:
        return [draw.task.key for _, draw in self.begun]


def step(
    cluster: Cluster,
    sources: Sequence[Source],
    wanted: int,
    concurrent: int = 8,
    patience_s: float = 600.0,
    said: list[str] | None = None,
    forecast: Callable[[Task], Forecast] = lambda task: Forecast(),
) -> list[Ended[Result]]:
    said = [] if said is None else said
    scheduler = Scheduler(concurrent, 3, Breaker(3, patience_s), said.append)

    async def main() -> list[Ended[Result]]:
        return await scheduler.step(cluster.run, TaskMix(sources).draws({}, forecast), wanted, 2 * wanted)

    return run_virtually(main())


def test_an_outage_pauses_everything_and_costs_no_group() -> None:
    said: list[str] = []
    cluster = Cluster(down=lambda draw, now: 15.0 < now < 300.0)
    ended = step(cluster, [source("a")], wanted=24, said=said)
    assert [e.draw.index for e in ended] == list(range(24)) and all(e.result.kept for e in ended)
    assert [text.split(":")[0] for text in said] == ["paused", "the outage is over"]
    within = [when for when, _ in cluster.begun if 25.0 < when < 300.0]
    assert 3 <= len(within) <= 8  # trials at growing intervals
    assert all(e.failures == 0 for e in ended)


def test_outages_that_come_again_and_again_draw_few_groups_too_many() -> None:
    cluster = Cluster(down=lambda draw, now: now // 25.0 % 2 == 1)
    ended = step(cluster, [source("a")], wanted=24)
    assert 24 <= sum(e.result.kept for e in ended) <= 26


def test_an_outage_without_end_is_given_up() -> None:
    cluster = Cluster(down=lambda draw, now: True)
    ended = step(cluster, [source("a")], wanted=4, patience_s=100.0)
    assert [e.result.dropped for e in ended] == [FAILED] * 8
    assert 100.0 <= cluster.begun[-1][0] < 250.0


def test_one_bad_task_is_set_aside_and_another_takes_its_place() -> None:
    said: list[str] = []
    bad = source("a").order.task(2).key
    cluster = Cluster(down=lambda draw, now: draw.task.key == bad)
    ended = step(cluster, [source("a")], wanted=6, said=said)
    assert [e.result.kept for e in ended] == [True, True, False, True, True, True, True]
    assert cluster.names.count(bad) == 3
    assert {e.draw.task.key: e.failures for e in ended if e.failures} == {bad: 3}
    assert said == [f"task {bad} is set aside: the infrastructure failed 3 of its groups one after the other"]


@pytest.mark.parametrize("concurrent", [1, 3, 8])
@pytest.mark.parametrize("count", [3, 4])
def test_as_many_bad_tasks_as_make_an_outage_are_set_aside_all_the_same(count: int, concurrent: int) -> None:
    order, wanted = source("a").order, 6
    bad = {order.task(place).key for place in range(count)}
    cluster = Cluster(down=lambda draw, now: draw.task.key in bad)
    ended = step(cluster, [source("a")], wanted, concurrent)
    assert {e.draw.task.key: e.failures for e in ended if not e.result.kept} == dict.fromkeys(bad, 3)
    assert len(ended) == wanted + len(bad)
    assert cluster.begun[-1][0] < 500.0  # and not only once an outage is given up


def test_a_pause_that_ends_while_it_is_looked_at_is_not_waited_for_without_end() -> None:
    class Ending(Breaker):
        looks = 0

        def wait_s(self) -> float:
            self.looks += 1
            return 1e-9 if self.looks == 1 else 0.0

    async def main() -> list[Ended[Result]]:
        return await Scheduler(1, 3, Ending(3, 600.0)).step(Cluster().run, TaskMix([source("a")]).draws({}), 1, 1)

    assert [e.result.kept for e in run_virtually(main())] == [True]


def test_quota_and_priority_order_the_beginnings() -> None:
    sources = [source("slow", quota=2, weight=1.0), source("fast", priority=1, weight=1.0)]
    cluster = Cluster(seconds=lambda draw: 100.0 if draw.source.name == "slow" else 10.0)
    ended = step(cluster, sources, wanted=12, concurrent=4)
    first = [draw.source.name for when, draw in cluster.begun if when == 0.0]
    assert first == ["fast"] * 4
    assert cluster.most_at_work == 4
    slow = [(when, when + 100.0) for when, draw in cluster.begun if draw.source.name == "slow"]
    assert max(sum(begin <= when < end for begin, end in slow) for when, _ in slow) == 2
    assert [e.draw.source.name for e in ended].count("slow") == 6


def test_long_groups_are_begun_before_short_ones() -> None:
    lengths = {f"a/t{i}": float(i) for i in range(40)}
    cluster = Cluster(seconds=lambda draw: lengths[draw.task.key])
    step(cluster, [source("a")], 10, concurrent=2, forecast=lambda task: Forecast(length=lengths[task.key]))
    begun = [lengths[name] for name in cluster.names]
    assert begun == sorted(begun, reverse=True)


def test_an_error_of_a_group_ends_the_step_and_leaves_nothing_running() -> None:
    class Broken(Cluster):
        async def run(self, draw: Draw, rank: Rank) -> Result:
            if draw.index == 3:
                raise RuntimeError("bug")
            return await super().run(draw, rank)

    with pytest.raises(RuntimeError, match="bug"):
        step(Broken(), [source("a")], wanted=8)


def test_a_step_whose_tasks_run_out_ends_with_what_there_is() -> None:
    cluster = Cluster()
    usable = {"a/t1", "a/t7"}
    ended = step(cluster, [source("a")], 4, forecast=lambda task: Forecast(usable=task.key in usable))
    assert [e.result.kept for e in ended] == [True] * 4
    assert set(cluster.names) == usable
    assert step(Cluster(), [source("a")], 4, forecast=lambda task: Forecast(usable=False)) == []
