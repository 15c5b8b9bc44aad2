"""Which trajectories are too old to train on."""

from collections.abc import Callable

import pytest

from gagar_mcore.records.types import Trajectory, WeightSpan
from gagar_mcore.rollout.metrics import staleness_metrics
from gagar_mcore.rollout.samples import Sample
from gagar_mcore.rollout.staleness import Staleness


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


def test_metrics_count_versions_behind_and_what_was_dropped() -> None:
    def sample(oldest: int | None, valid: bool = True) -> Sample:
        return Sample("", valid, not valid, False, 0.0, True, False, 1, 1, 0, 3, 1.5, oldest)

    metrics = staleness_metrics([sample(6), sample(4), sample(None), sample(0, valid=False)], version=6)
    assert metrics == {"staleness_mean": 1.0, "staleness_max": 2, "stale": 1}
