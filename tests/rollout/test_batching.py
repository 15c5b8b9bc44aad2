from collections.abc import Callable
from pathlib import Path

import pytest

from gagar_mcore.records.types import Credit, Group, Trajectory
from gagar_mcore.rollout.batching import build_batch
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.tasks.task import Task

TASK = Task("task", Path(), "", Path(), Path(), (), ())


def finished(trajectories: list[Trajectory], advantages: dict[str, float]) -> FinishedGroup:
    credit = Credit("gagar", True, None, None, 1.0, False, advantages)
    return FinishedGroup(Group("g", 1, "task", [t.id for t in trajectories], None, credit), TASK, trajectories)


def test_invalid_trajectories_are_left_out_and_advantages_stay_with_their_owners(
    make_trajectory: Callable[..., Trajectory],
) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, valid=False), make_trajectory(2, generated=5)]
    batch, ids = build_batch([finished(members, {members[0].id: 0.5, members[2].id: -0.5})])
    assert ids == [members[0].id, members[2].id]
    assert batch.advantages.tolist() == [0.5, -0.5]
    assert batch.weights.tolist() == pytest.approx([1 / 8, 1 / 8])


def test_a_trajectory_that_generated_nothing_has_no_token_to_train(make_trajectory: Callable[..., Trajectory]) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, generated=0, weight_spans=[])]
    batch, ids = build_batch([finished(members, {m.id: 0.5 for m in members})])
    assert ids == [members[0].id]
    assert batch.num_sequences == 1
