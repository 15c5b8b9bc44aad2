"""Builders that several rooms' tests share, and which tests two workers share out."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from gagar_mcore.records.types import Trajectory, WeightSpan

settings.register_profile("untimed", deadline=None)  # a loaded machine fails no test
settings.load_profile("untimed")

RANKS = "tests/trainer/"  # one set of ranks computes what all tests below ask for


class ByFile(LoadScopeScheduling):
    """A worker takes the tests of a file at a time, as they share what is slow to set up."""

    def _split_scope(self, nodeid: str) -> str:
        return RANKS if nodeid.startswith(RANKS) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    def build(member: int = 0, reward: float = 0.0, generated: int = 3, context: int = 4, **changes: Any) -> Trajectory:
        fields: dict[str, Any] = {
            "id": f"s000001-g0000-m{member:02d}",
            "group_id": "s000001-g0000",
            "task_id": "task",
            "member": member,
            "token_ids": list(range(context + generated)),
            "logprobs": [0.0] * context + [-0.5] * generated,
            "loss_mask": [0] * context + [1] * generated,
            "weight_spans": [WeightSpan(0, context, context + generated)],
            "turns": [],
            "patch": "",
            "end_reason": "finished",
            "reward": reward,
            "valid": True,
        }
        return Trajectory(**(fields | changes))

    return build
