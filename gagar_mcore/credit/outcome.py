"""Outcome statistics of one group: who counts, whether the group is kept, and the advantage of the tests alone."""

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from gagar_mcore.records.types import DropReason


class Outcome(Protocol):
    """What credit needs of a trajectory; `records.Trajectory` has it. `reward` lies in [0, 1] and passes when above 0."""

    @property
    def id(self) -> str: ...
    @property
    def reward(self) -> float: ...
    @property
    def valid(self) -> bool: ...


def valid_rewards(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Rewards of the valid trajectories by id. Raises ValueError for an id given twice or a reward outside [0, 1]."""
    seen: set[str] = set()
    rewards: dict[str, float] = {}
    for outcome in outcomes:
        if outcome.id in seen:
            raise ValueError(f"trajectory {outcome.id!r}: id given twice in one group")
        seen.add(outcome.id)
        if outcome.valid:
            rewards[outcome.id] = _checked_reward(outcome)
    return rewards


def _checked_reward(outcome: Outcome) -> float:
    reward = outcome.reward
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1:
        raise ValueError(f"trajectory {outcome.id!r}: reward must be a number from 0 to 1, got {reward!r}")
    return float(reward)


def passing_ids(rewards: Mapping[str, float]) -> list[str]:
    return [id for id, reward in rewards.items() if reward > 0]


def zero_hacks(rewards: Mapping[str, float], hacks: Iterable[str]) -> dict[str, float]:
    """A copy in which confirmed hacks have reward 0."""
    zeroed = set(hacks)
    return {id: 0.0 if id in zeroed else reward for id, reward in rewards.items()}


def drop_reason(rewards: Mapping[str, float], hacks: Iterable[str], min_valid: int) -> DropReason | None:
    """Why a group teaches nothing, None where it is kept; `rewards` after hack zeroing."""
    if len(rewards) < min_valid:
        return "too_few_valid"
    passing = len(passing_ids(rewards))
    if passing == 0:
        return "all_hacked" if any(True for _ in hacks) else "all_fail"
    return "all_pass" if passing == len(rewards) else None


def outcome_advantages(rewards: Mapping[str, float]) -> dict[str, float]:
    """A_i = R_i - mean(R). Never divided by the standard deviation: its rounding residue would be amplified."""
    mean = math.fsum(rewards.values()) / len(rewards)
    return {id: reward - mean for id, reward in rewards.items()}
