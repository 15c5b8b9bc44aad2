"""The credit step of one group."""

from collections.abc import Iterable

from gagar_mcore.credit.outcome import Outcome, drop_reason, outcome_advantages, passing_ids, valid_rewards, zero_hacks
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.credit.redistribute import downweight, redistribute
from gagar_mcore.credit.tiers import discount_factors
from gagar_mcore.credit.verdict import FactorVerdict, VerdictError, check_verdict
from gagar_mcore.records.types import Credit, Verdict


def compute_credit(
    outcomes: Iterable[Outcome],
    verdict: Verdict | FactorVerdict | None,
    params: CreditParams,
    fallback: str | None = None,
) -> Credit:
    """Advantages of one group, in the order: verdict check, hack zeroing, keep or drop, outcome advantage, redistribution.

    `outcomes` are all trajectories of the group, the invalid ones included. Without a usable verdict the outcome advantages
    stand; `fallback` then says why: the reason given here ("late", "failed: ..."), "invalid: ..." for a verdict that fails
    its check, "no verdict" where a kept group has none though the method needs one. Every method zeroes confirmed hacks.
    Nothing of the caller's is changed. Raises ValueError for a reward outside [0, 1], not a number, or an id given twice."""
    rewards = valid_rewards(outcomes)
    if verdict is not None and fallback is None:
        fallback = _problem(verdict, passing_ids(rewards), params)
    if fallback is not None:
        verdict = None
    hacks = verdict.hacks if verdict else []
    rewards = zero_hacks(rewards, hacks)
    dropped = drop_reason(rewards, hacks, params.min_valid)
    if dropped:
        return Credit(params.method, False, dropped, fallback, 1.0, False, {})
    advantages = outcome_advantages(rewards)
    if verdict is None:
        missing = None if params.method == "grpo" else "no verdict"
        return Credit(params.method, True, None, fallback or missing, 1.0, False, advantages)
    tiers, factors = _judgement(verdict, passing_ids(rewards), params)
    lam, capped = 1.0, False
    if params.method == "gagar":
        advantages, lam, capped = redistribute(advantages, factors, params.cap)
    elif params.method == "downweight_only":
        advantages = downweight(advantages, factors)
    return Credit(params.method, True, None, None, lam, capped, advantages, tiers, factors)


def _problem(verdict: Verdict | FactorVerdict, passing: list[str], params: CreditParams) -> str | None:
    try:
        check_verdict(verdict, passing, params)
    except VerdictError as error:
        return f"invalid: {error}"
    return None


def _judgement(
    verdict: Verdict | FactorVerdict, passing: list[str], params: CreditParams
) -> tuple[dict[str, int], dict[str, float]]:
    """Tiers and factors of the trajectories that still pass; factors given outright have no tiers."""
    if isinstance(verdict, FactorVerdict):
        return {}, {id: verdict.factors[id] for id in passing}
    return discount_factors({id: verdict.grades[id] for id in passing}, params)
