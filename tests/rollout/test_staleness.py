"""Which trajectories are too old to train on."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from gagar_mcore.agent.session import SessionKey
from gagar_mcore.credit import CreditParams
from gagar_mcore.grading.service import GradingService
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import read_json
from gagar_mcore.records.types import Trajectory, WeightSpan
from gagar_mcore.rollout.group import GroupPipeline, Sampler
from gagar_mcore.rollout.metrics import staleness_metrics
from gagar_mcore.rollout.samples import Sample
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.rollout.staleness import Staleness
from gagar_mcore.tasks.task import Task


@pytest.mark.parametrize(("most", "kept"), [(4, True), (3, False), (None, True)])
def test_the_oldest_token_decides(make_trajectory: Callable[..., Trajectory], most: int | None, kept: bool) -> None:
    staleness = Staleness(most, version=9)
    trajectory = make_trajectory(weight_spans=[WeightSpan(9, 4, 5), WeightSpan(5, 5, 7)])
    assert staleness.of(trajectory) == 4
    checked = staleness.checked(trajectory)
    assert checked.valid is kept
    if kept:
        assert checked is trajectory
    else:
        assert (checked.invalid_reason, checked.invalid_detail) == ("stale", "its oldest tokens are 4 versions behind weights 9")


def test_what_is_invalid_for_another_reason_stays_so(make_trajectory: Callable[..., Trajectory]) -> None:
    lost = make_trajectory(valid=False, invalid_reason="sandbox_lost", weight_spans=[])
    assert Staleness(0, version=9).checked(lost) is lost


class Lagging:
    """In the place of a Sampler: its engine has weights 5, but for the last member, which has 0."""

    lockstep = False

    def __init__(self, make_trajectory: Callable[..., Trajectory]) -> None:
        self.make = make_trajectory

    async def sample(
        self, keys: Sequence[SessionKey], task: Task, done: Callable[[Trajectory], None], rank: Rank
    ) -> list[Trajectory]:
        spans = [[WeightSpan(0 if key is keys[-1] else 5, 4, 7)] for key in keys]
        sampled = [self.make(k.member, id=k.trajectory_id, weight_spans=s) for k, s in zip(keys, spans, strict=True)]
        for trajectory in sampled:
            done(trajectory)
        return sampled


def test_a_group_goes_on_without_the_members_that_are_too_old(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    pipeline = GroupPipeline(
        layout=RunLayout(tmp_path),
        epoch=1,
        seed=1,
        group_size=3,
        sampler=cast(Sampler, Lagging(make_trajectory)),
        grading=cast(GradingService, None),  # all fail, so none is graded
        credit=CreditParams(min_valid=2),
        progress=lambda event: None,
        staleness=Staleness(4, version=6),
    )
    finished = asyncio.run(pipeline.run(2, 0, Task("task", Path(), "", Path(), Path(), (), ())))
    assert [t.invalid_reason for t in finished.trajectories] == [None, None, "stale"]
    assert finished.dropped == "all_fail"
    stored = from_plain(Trajectory, read_json(RunLayout(tmp_path).trajectory(2, finished.trajectories[2].id)))
    assert stored == finished.trajectories[2]


def test_metrics_count_versions_behind_and_what_was_dropped() -> None:
    def sample(oldest: int | None, valid: bool = True) -> Sample:
        return Sample("", valid, not valid, False, 0.0, True, False, 1, 1, 0, 3, 1.5, oldest)

    metrics = staleness_metrics([sample(6), sample(4), sample(None), sample(0, valid=False)], version=6)
    assert metrics == {"staleness_mean": 1.0, "staleness_max": 2, "stale": 1}
