"""Outcome statistics of one group: who counts, whether the group is kept, and the advantage of the tests alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from gagar_mcore.credit.checks import boolean, exact, within
from gagar_mcore.records.types import DropReason, Lengths

Exact = dict[str, Fraction]  # by trajectory id


class Outcome(Protocol):
    """What credit needs of a trajectory; `Attempt` and `records.Trajectory` have it. `reward` lies in [0, 1] and passes when
    above 0.

    Two more attributes are read where they exist: `lengths` (`records.Lengths`), which the length penalty asks for, and
    `invalid_reason`, which an explanation names."""

    @property
    def id(self) -> str: ...
    @property
    def reward(self) -> float: ...
    @property
    def valid(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """The plainest `Outcome`. `lengths` are asked for where the length penalty is on."""

    id: str
    reward: float
    valid: bool = True
    lengths: Lengths | None = None


def valid_rewards(outcomes: Iterable[Outcome]) -> Exact:
    """Rewards of the valid trajectories by id. Raises ValueError for a member that is no outcome, an id given twice, a
    `valid` that is no boolean, or a reward outside [0, 1]."""
    seen: set[str] = set()
    rewards: Exact = {}
    for place, outcome in enumerate(outcomes):
        _check_outcome(place, outcome)
        if outcome.id in seen:
            raise ValueError(f"trajectory {outcome.id!r}: id given twice in one group")
        seen.add(outcome.id)
        if outcome.valid:
            rewards[outcome.id] = exact_reward(outcome.id, outcome.reward)
    return rewards


def _check_outcome(place: int, outcome: Outcome) -> None:
    for name in ("id", "reward", "valid"):
        if not hasattr(outcome, name):
            kind = type(outcome).__name__
            raise ValueError(
                f"outcomes[{place}]: a {kind} has no attribute {name}; give gagar_mcore.credit.Attempt(id, reward, valid)"
            )
    if not boolean(outcome.valid):
        raise ValueError(f"trajectory {outcome.id!r}: valid must be true or false, got {outcome.valid!r}")


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
