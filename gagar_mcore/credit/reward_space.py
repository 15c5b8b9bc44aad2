"""The redistribution of binary rewards written as rewards, for stacks that derive advantages themselves."""

from collections.abc import Mapping
from fractions import Fraction

from gagar_mcore.credit.checks import discount, exact
from gagar_mcore.credit.outcome import exact_reward, mean_reward, passing_ids


def reward_space(rewards: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """R'_i = mean(R) + (1 - mean(R)) f_i / mean(f over the passing) for passing ids, 0 for failing ones.

    `rewards`, 0 or 1, of the valid trajectories of one group, and `factors` in (0, 1] of its passing ones, by id. R'_i - mean(R')
    is the `gagar` advantage without a cap; an R' above 1 is in order. Raises ValueError naming trajectory or field."""
    given = {id: exact_reward(id, reward) for id, reward in rewards.items()}
    for id, reward in given.items():
        if reward not in (0, 1):
            raise ValueError(f"trajectory {id!r}: reward must be 0 or 1 in the reward-space form, got {rewards[id]!r}")
    passing = passing_ids(given)
    if not passing:
        return dict.fromkeys(rewards, 0.0)
    mean, discounts = mean_reward(given), _exact_factors(factors, passing)
    mean_factor = sum(discounts.values(), Fraction()) / len(discounts)
    shaped = {id: float(mean + (1 - mean) * factor / mean_factor) for id, factor in discounts.items()}
    return {id: shaped.get(id, 0.0) for id in rewards}


def _exact_factors(factors: Mapping[str, float], passing: list[str]) -> dict[str, Fraction]:
    if factors.keys() != set(passing):
        raise ValueError(f"factors: must hold the passing trajectories and no others, {sorted(passing)}")
    for id, factor in factors.items():
        if not discount(factor):
            raise ValueError(f"factors.{id}: must be a number in (0, 1], got {factor!r}")
    return {id: exact(factor) for id, factor in factors.items()}
