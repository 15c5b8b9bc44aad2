from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from gagar_mcore.credit import Aggregation
from gagar_mcore.records.batch import Batch, read_batch
from gagar_mcore.records.columns import open_columns
from gagar_mcore.records.experts import UNKNOWN, publish_experts
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import RecordError, publish_directory
from gagar_mcore.records.types import Credit, Group, Trajectory
from gagar_mcore.rollout.batching import BatchBuilder
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.tasks.task import Task

TASK = Task("task", Path(), "", Path(), Path(), (), ())


def finished(trajectories: list[Trajectory], advantages: dict[str, float], name: str = "g") -> FinishedGroup:
    credit = Credit("gagar", True, None, None, 1.0, False, advantages)
    return FinishedGroup(Group(name, 1, "task", [t.id for t in trajectories], None, credit), TASK, trajectories)


def publish(layout: RunLayout, step: int, group: FinishedGroup) -> None:
    def fill(directory: Path) -> dict[str, Any]:
        builder = BatchBuilder(directory, layout)
        builder.append(group.group, group.trajectories)
        return builder.finish("token-mean")[0]

    publish_directory(layout.batch(step), "batch", 1, fill)


def build_batch(groups: list[FinishedGroup], aggregation: Aggregation) -> tuple[Batch, list[str]]:
    """And the trajectory of each sequence."""
    with TemporaryDirectory() as folder:
        builder = BatchBuilder(Path(folder), RunLayout(Path(folder)))
        for group in groups:
            builder.append(group.group, group.trajectories)
        meta, _ = builder.finish(aggregation)
        return Batch(**{name: np.array(column) for name, column in open_columns(Path(folder)).items()}), meta["trajectory_ids"]


def test_invalid_trajectories_are_left_out_and_advantages_stay_with_their_owners(
    make_trajectory: Callable[..., Trajectory],
) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, valid=False), make_trajectory(2, generated=5)]
    batch, kept = build_batch([finished(members, {members[0].id: 0.5, members[2].id: -0.5})], "prompt-mean")
    assert kept == [members[0].id, members[2].id]
    assert batch.advantages.tolist() == [0.5, -0.5]
    assert batch.weights.tolist() == pytest.approx([1 / 8, 1 / 8])


def test_a_trajectory_that_generated_nothing_has_no_token_to_train(make_trajectory: Callable[..., Trajectory]) -> None:
    members = [make_trajectory(0, generated=3), make_trajectory(1, generated=0, weight_spans=[])]
    batch, kept = build_batch([finished(members, {m.id: 0.5 for m in members})], "prompt-mean")
    assert kept == [members[0].id]
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


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "prompt-mean"])
def test_a_trajectory_weighs_as_much_in_segments_as_in_one(
    make_trajectory: Callable[..., Trajectory], aggregation: Aggregation
) -> None:
    def weights(starts: list[int]) -> tuple[list[float], list[float]]:
        members = [make_trajectory(0, generated=8, loss_mask=[0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0], segment_starts=starts)]
        members.append(make_trajectory(1, generated=3))
        batch, _ = build_batch([finished(members, {members[0].id: 0.5, members[1].id: -0.5})], aggregation)
        tokens = batch.loss_mask * np.repeat(batch.weights, np.diff(batch.cu_seqlens))
        return tokens.tolist()[:12], batch.advantages.tolist()

    whole, advantages = weights([0])
    assert advantages == [0.5, -0.5]
    assert weights([0, 3, 6]) == (whole, [0.5, 0.5, 0.5, -0.5])


def recorded(layout: RunLayout, trajectory: Trajectory, first: int, known: int) -> Trajectory:
    """With a file of experts that count from `first`, known of the first tokens only."""
    experts = np.full((len(trajectory.token_ids), 2, 2), UNKNOWN, np.int16)
    experts[:known] = np.arange(first, first + known)[:, None, None]
    return replace(trajectory, experts=publish_experts(layout.experts(1, trajectory.id), experts))


def test_recorded_experts_stand_at_their_tokens_and_those_of_others_are_unknown(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory]
) -> None:
    layout = RunLayout(tmp_path)
    members = [make_trajectory(i, generated=2 + i) for i in range(4)]
    members[1] = recorded(layout, members[1], 10, known=6)
    members[2] = recorded(layout, members[2], 20, known=3)  # not in the batch
    members[3] = recorded(
        layout, replace(members[3], loss_mask=[0, 1, 0, 0, 0, 1, 1, 1, 1], segment_starts=[0, 2, 4]), 300, known=8
    )
    group = finished(members, {members[i].id: 0.5 for i in (0, 1, 3)})
    publish(layout, 1, group)
    batch, meta = read_batch(layout.batch(1))
    assert meta["trajectory_ids"] == [members[i].id for i in (0, 1, 3, 3)]
    assert batch.experts is not None and batch.experts.dtype == np.int16 and batch.experts.shape == (len(batch.tokens), 2, 2)
    parts = [batch.experts[a:b, 1, 0].tolist() for a, b in pairwise(batch.cu_seqlens)]
    assert parts == [[UNKNOWN] * 6, [*range(10, 16), UNKNOWN], [300, 301], [*range(304, 308), UNKNOWN]]


def test_a_batch_without_records_has_no_column_and_a_damaged_record_stops_it(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory]
) -> None:
    layout = RunLayout(tmp_path)
    free = finished([make_trajectory(0)], {make_trajectory(0).id: 0.5})
    publish(layout, 1, free)
    assert read_batch(layout.batch(1))[0].experts is None

    member = recorded(layout, make_trajectory(1), 0, known=6)
    layout.experts(1, member.id).write_bytes(b"garbage")
    damaged = finished([member], {member.id: 0.5})
    with pytest.raises(RecordError, match=r"m01\.experts\.npy: missing or damaged"):
        publish(layout, 2, damaged)
    assert not layout.batch(2).exists()
