"""Outcome statistics of one group: who counts, whether the group is kept, and the advantage of the tests alone."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Protocol

from gagar_mcore.credit.checks import exact, within
from gagar_mcore.records.types import DropReason

Exact = dict[str, Fraction]  # by trajectory id


class Outcome(Protocol):
    """What credit needs of a trajectory; `records.Trajectory` has it. `reward` lies in [0, 1] and passes when above 0.

    Two more attributes are read where they exist: `lengths` (`records.Lengths`), which the length penalty asks for, and
    `invalid_reason`, which an explanation names."""

    @property
    def id(self) -> str: ...
    @property
    def reward(self) -> float: ...
    @property
    def valid(self) -> bool: ...


def valid_rewards(outcomes: Iterable[Outcome]) -> Exact:
    """Rewards of the valid trajectories by id. Raises ValueError for an id given twice or a reward outside [0, 1]."""
    seen: set[str] = set()
    rewards: Exact = {}
    for outcome in outcomes:
        if outcome.id in seen:
            raise ValueError(f"trajectory {outcome.id!r}: id given twice in one group")
        seen.add(outcome.id)
        if outcome.valid:
            rewards[outcome.id] = exact_reward(outcome.id, outcome.reward)
    return rewards


def exact_reward(id: str, reward: float) -> Fraction:
    if not within(0, 1)(reward):
        raise ValueError(f"trajectory {id!r}: reward must be a number from 0 to 1, got {reward!r}")
    return exact(reward)


def passing_ids(rewards: Mapping[str, Fraction]) -> list[str]:
    return [id for id, reward in rewards.items() if reward > 0]


def zero_hacks(rewards: Mapping[str, Fraction], hacks: Iterable[str]) -> Exact:
    """A copy in which confirmed hacks have reward 0."""
    return {**rewards, **dict.fromkeys(hacks, Fraction(0))}


def drop_reason(rewards: Mapping[str, Fraction], hacks: Iterable[str], min_valid: int) -> DropReason | None:
    """Why a group teaches nothing, None where it is kept; `rewards` after hack zeroing and before any penalty."""
    if len(rewards) < min_valid:
        return "too_few_valid"
    passing = len(passing_ids(rewards))
    if passing == 0:
        return "all_hacked" if any(True for _ in hacks) else "all_fail"
    return "all_pass" if passing == len(rewards) else None


def mean_reward(rewards: Mapping[str, Fraction]) -> Fraction:
    return sum(rewards.values(), Fraction()) / len(rewards)


def outcome_advantages(rewards: Mapping[str, Fraction]) -> Exact:
    """A_i = R_i - mean(R), never divided by the standard deviation."""
    mean = mean_reward(rewards)
    return {id: reward - mean for id, reward in rewards.items()}
