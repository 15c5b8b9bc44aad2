from dataclasses import replace

from example_runs import graded_group, publish

from gagar_mcore.viewer.load import RunReader
from gagar_mcore.viewer.select import EARLIER_STEPS, GROUPS_OF_A_LATEST_STEP, SHOWN_FIRST, evenly_spaced, select_groups


def put(layout, step, index, kept=True):
    group, _ = graded_group(step, f"s{step:06d}-g{index:04d}")
    publish(layout, replace(group, credit=replace(group.credit, kept=kept)), [])


def test_last_steps_whole_and_one_kept_group_of_earlier_ones(layout):
    for step in range(1, 6):
        for index in range(3):
            put(layout, step, index, kept=index > 0)
    selection = select_groups(RunReader(layout))
    assert [(g.step, g.id[-1]) for g in selection.groups] == [
        *[(5, "1"), (5, "2"), (5, "0"), (4, "1")],
        *[(3, "1"), (2, "1"), (1, "1")],
        *[(4, "2"), (4, "0")],
    ]
    assert selection.total == 15


def test_both_kinds_are_bounded(layout):
    for index in range(GROUPS_OF_A_LATEST_STEP + 5):
        put(layout, 100, index)
    for step in range(1, 100):
        put(layout, step, 0)
    steps = [g.step for g in select_groups(RunReader(layout)).groups]
    assert steps.count(100) == GROUPS_OF_A_LATEST_STEP
    assert steps.count(99) == 1
    assert len(steps) == GROUPS_OF_A_LATEST_STEP + 1 + EARLIER_STEPS
    assert steps[SHOWN_FIRST + EARLIER_STEPS - 1] == 1


def test_evenly_spaced_keeps_both_ends():
    assert evenly_spaced(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly_spaced([1, 2], 4) == [1, 2]
    assert evenly_spaced([], 4) == []
