from collections.abc import Callable
from pathlib import Path

import pytest

from gagar_mcore.credit import Aggregation
from gagar_mcore.records.types import Credit, Group, Trajectory
from gagar_mcore.rollout.batching import build_batch
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.tasks.task import Task

TASK = Task("task", Path(), "", Path(), Path(), (), ())


def finished(trajectories: list[Trajectory], advantages: dict[str, float], name: str = "g") -> FinishedGroup:
    credit = Credit("gagar", True, None, None, 1.0, False, advantages)
    return FinishedGroup(Group(name, 1, "task", [t.id for t in trajectories], None, credit), TASK, trajectories)


def test_invalid_trajectories_are_left_out_and_advantages_stay_with_their_owners(
    make_trajectory: Callable[..., Trajectory],
) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, valid=False), make_trajectory(2, generated=5)]
    batch, kept = build_batch([finished(members, {members[0].id: 0.5, members[2].id: -0.5})], "prompt-mean")
    assert kept == [members[0], members[2]]
    assert batch.advantages.tolist() == [0.5, -0.5]
    assert batch.weights.tolist() == pytest.approx([1 / 8, 1 / 8])


def test_a_trajectory_that_generated_nothing_has_no_token_to_train(make_trajectory: Callable[..., Trajectory]) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, generated=0, weight_spans=[])]
    batch, kept = build_batch([finished(members, {m.id: 0.5 for m in members})], "prompt-mean")
    assert kept == members[:1]
    assert batch.num_sequences == 1


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [("token-mean", [1 / 11] * 3), ("sequence-mean", [1 / 9, 1 / 15, 1 / 9]), ("prompt-mean", [1 / 16, 1 / 16, 1 / 6])],
)
def test_every_aggregation_counts_the_generated_tokens(
    make_trajectory: Callable[..., Trajectory], aggregation: Aggregation, weights: list[float]
) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, generated=5), make_trajectory(0, generated=3, id="other")]
    groups = [finished(members[:2], {m.id: 0.5 for m in members}), finished(members[2:], {"other": -0.5}, "h")]
    batch, _ = build_batch(groups, aggregation)
    assert batch.weights.tolist() == pytest.approx(weights)
