from collections import Counter
from itertools import islice
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.records.serialize import from_plain, to_plain
from gagar_mcore.rollout.history import History, TaskOutcome, chance_of_mixed
from gagar_mcore.tasks.mix import Draw, Forecast, Place, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task


def source(name: str, tasks: int, weight: float = 1.0) -> Source:
    made = [Task(f"t{i}", Path(), "", Path(), Path(), (), (), source=name) for i in range(tasks)]
    return Source(name, TaskOrder(made, 7), weight)


def mixed_by_id(task: Task) -> Forecast:
    return Forecast(mixed=int(task.id[1:]) % 5 / 5)


def test_weights_are_the_shares_of_the_groups() -> None:
    mix = TaskMix([source("code", 9, 3.0), source("answers", 5, 1.0)])
    names = [draw.source.name for draw in islice(mix.draws({}), 40)]
    assert Counter(names) == {"code": 30, "answers": 10}
    assert "answers" in names[:4]


def test_a_window_of_one_draws_in_order() -> None:
    only = source("a", 6)
    drawn = [draw.task for draw in islice(TaskMix([only]).draws({}, mixed_by_id), 18)]
    assert drawn == [only.order.task(p) for p in range(18)]


def test_within_the_window_the_likeliest_goes_first() -> None:
    only = source("a", 10)
    drawn = [mixed_by_id(draw.task).mixed for draw in islice(TaskMix([only], window=10).draws({}, mixed_by_id), 4)]
    assert drawn[:2] == [0.8, 0.8]


@settings(max_examples=30)
@given(window=st.integers(1, 9), cut=st.integers(0, 60), weight=st.floats(0.2, 5.0))
def test_a_run_that_goes_on_from_a_position_neither_skips_nor_repeats_a_task(window: int, cut: int, weight: float) -> None:
    mix = TaskMix([source("a", 7, weight), source("b", 4)], window)
    whole = list(islice(mix.draws({}, mixed_by_id), 60))
    position = whole[cut - 1].after if cut else {}
    stored = {name: from_plain(Place, to_plain(place)) for name, place in position.items()}
    rest = list(islice(mix.draws(stored, mixed_by_id), 60 - cut))

    def what(draws: list[Draw]) -> list[tuple[str, object]]:
        return [(draw.task.key, draw.after) for draw in draws]

    assert what(whole[:cut] + rest) == what(whole)


@settings(max_examples=30)
@given(window=st.integers(1, 9))
def test_no_task_is_held_back_for_longer_than_its_window(window: int) -> None:
    only = source("a", 12)
    drawn = [draw.task.id for draw in islice(TaskMix([only], window).draws({}, mixed_by_id), 36)]
    counts = Counter(drawn)
    assert set(counts) == {f"t{i}" for i in range(12)}
    order = [only.order.task(p).id for p in range(12)]
    assert all(drawn.index(name) < place + window for place, name in enumerate(order))


def test_a_window_of_more_tasks_than_there_are_repeats_none_within_a_pass() -> None:
    drawn = [draw.task.id for draw in islice(TaskMix([source("a", 5)], window=32).draws({}, mixed_by_id), 15)]
    assert [len(set(drawn[start : start + 5])) for start in (0, 5, 10)] == [5, 5, 5]


def test_unusable_tasks_are_passed_over_and_count_for_no_share() -> None:
    mix = TaskMix([source("a", 6), source("b", 6)], window=4)
    drawn = list(islice(mix.draws({}, lambda task: Forecast(usable=task.key != "a/t0")), 20))
    assert "a/t0" not in {draw.task.key for draw in drawn}
    assert Counter(draw.source.name for draw in drawn) == {"a": 10, "b": 10}


def test_a_source_without_usable_tasks_leaves_the_others_to_go_on() -> None:
    mix = TaskMix([source("a", 3), source("b", 3)], window=2)
    drawn = list(islice(mix.draws({}, lambda task: Forecast(usable=task.source == "b")), 9))
    assert {draw.source.name for draw in drawn} == {"b"} and len(drawn) == 9
    assert list(mix.draws({}, lambda task: Forecast(usable=False))) == []


def test_the_chance_of_mixed_outcomes() -> None:
    assert chance_of_mixed(0, 0, 2) == 1 / 3 or abs(chance_of_mixed(0, 0, 2) - 1 / 3) < 1e-12
    assert abs(chance_of_mixed(0, 0, 8) - (1 - 2 / 9)) < 1e-12  # a uniform pass rate: every number of passes is as likely
    assert chance_of_mixed(4, 4, 8) > 0.95 > chance_of_mixed(8, 0, 8)
    assert abs(chance_of_mixed(8, 0, 8) - chance_of_mixed(0, 8, 8)) < 1e-12


def test_history_forecasts_from_what_the_steps_taught() -> None:
    history = History(group_size=8, most_failures=2)
    half, all_pass, bad, new = (Task(name, Path(), "", Path(), Path(), (), ()) for name in ("half", "all", "bad", "new"))
    history.add([TaskOutcome("half", 4, 8, 300, 0), TaskOutcome("all", 8, 8, 100, 0), TaskOutcome("bad", 0, 0, 0, 2)])
    assert history.forecast(half).mixed > history.forecast(new).mixed > history.forecast(all_pass).mixed
    assert history.forecast(half).length == 300 and history.forecast(new).length == 200
    assert not history.forecast(bad).usable and history.forecast(all_pass).usable
    assert history.set_aside() == ["bad"]
    history.add([TaskOutcome("bad", 3, 8, 10, 0)])
    assert history.forecast(bad).usable
