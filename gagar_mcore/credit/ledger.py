"""Every stage of one group's credit, in the order of operations and in exact rational arithmetic.

Floats appear at the two ends only, so no group is too large or too lopsided, and each advantage is the double next to the
value of its formula."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from gagar_mcore.credit.checks import exact
from gagar_mcore.credit.length import length_penalties, valid_lengths
from gagar_mcore.credit.outcome import (
    Exact,
    Outcome,
    drop_reason,
    mean_reward,
    outcome_advantages,
    passing_ids,
    valid_rewards,
    zero_hacks,
)
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.credit.redistribute import Redistribution, downweight, redistribute, untouched
from gagar_mcore.credit.tiers import discount_factors
from gagar_mcore.credit.verdict import FactorVerdict, VerdictError, check_verdict
from gagar_mcore.records.types import DropReason, Verdict

AnyVerdict = Verdict | FactorVerdict


@dataclass(frozen=True, slots=True)
class Stages:
    """From reward to advantage, by id. penalties: what the length penalty takes from passing ids. mean: of the rewards left.
    outcome: A_i = R_i - mean. tiers, factors: of the passing ids, where a verdict was used. correction: what every redistributed
    advantage is multiplied by to give `advantages`."""

    penalties: Exact
    mean: Fraction
    outcome: Exact
    tiers: dict[str, int]
    factors: dict[str, float]
    redistribution: Redistribution
    correction: Fraction
    advantages: Exact


@dataclass(frozen=True, slots=True)
class Ledger:
    """One group. rewards: of the valid trajectories, from the tests; zeroed: the same with 0 for confirmed hacks.
    fallback: why no verdict was used, None where one was or none was needed. stages: None where the group is dropped."""

    rewards: Exact
    hacks: list[str]
    zeroed: Exact
    fallback: str | None
    dropped: DropReason | None
    stages: Stages | None


def open_ledger(outcomes: Iterable[Outcome], verdict: AnyVerdict | None, params: CreditParams, fallback: str | None) -> Ledger:
    """`compute_credit`, which says what it takes and raises, with everything on the way."""
    outcomes = list(outcomes)
    rewards = valid_rewards(outcomes)
    lengths = valid_lengths(outcomes) if params.length_penalty else {}
    if verdict is not None and fallback is None:
        fallback = _problem(verdict, passing_ids(rewards), params)
    if fallback is not None:
        verdict = None
    hacks = verdict.hacks if verdict else []
    zeroed = zero_hacks(rewards, hacks)
    dropped = drop_reason(zeroed, hacks, params.min_valid)
    if dropped:
        return Ledger(rewards, hacks, zeroed, fallback, dropped, None)
    if verdict is None and params.method != "grpo":
        fallback = fallback or "no verdict"
    penalties = length_penalties(lengths, passing_ids(zeroed), params) if params.length_penalty else {}
    return Ledger(rewards, hacks, zeroed, fallback, None, _stages(zeroed, penalties, verdict, params))


def _stages(zeroed: Exact, penalties: Exact, verdict: AnyVerdict | None, params: CreditParams) -> Stages:
    rewards = {id: reward - penalties.get(id, 0) for id, reward in zeroed.items()}
    outcome = outcome_advantages(rewards)
    tiers, factors = _judgement(verdict, passing_ids(zeroed), params)
    moved = _redistribution(outcome, factors, params)
    correction = Fraction(len(outcome), len(outcome) - 1) if params.group_size_correction else Fraction(1)
    advantages = {id: advantage * correction for id, advantage in moved.advantages.items()}
    return Stages(penalties, mean_reward(rewards), outcome, tiers, factors, moved, correction, advantages)


def _problem(verdict: AnyVerdict, passing: list[str], params: CreditParams) -> str | None:
    try:
        check_verdict(verdict, passing, params)
    except VerdictError as error:
        return f"invalid: {error}"
    return None


def _judgement(verdict: AnyVerdict | None, passing: list[str], params: CreditParams) -> tuple[dict[str, int], dict[str, float]]:
    """Tiers and factors of the trajectories that still pass; factors given outright have no tiers."""
    if verdict is None:
        return {}, {}
    if isinstance(verdict, FactorVerdict):
        return {}, {id: float(verdict.factors[id]) for id in passing}
    return discount_factors({id: verdict.grades[id] for id in passing}, params)


def _redistribution(outcome: Exact, factors: dict[str, float], params: CreditParams) -> Redistribution:
    discounts = {id: exact(factor) for id, factor in factors.items()}
    if params.method == "gagar":
        return redistribute(outcome, discounts, params.cap)
    return downweight(outcome, discounts) if params.method == "downweight_only" else untouched(outcome)
