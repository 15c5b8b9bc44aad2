"""The credit step of one group."""

import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction

from gagar_mcore.credit.ledger import open_ledger
from gagar_mcore.credit.outcome import Outcome
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.credit.verdict import FactorVerdict
from gagar_mcore.records.types import Credit, Verdict


def compute_credit(
    outcomes: Iterable[Outcome],
    verdict: Verdict | FactorVerdict | None,
    params: CreditParams,
    fallback: str | None = None,
) -> Credit:
    """Advantages of one group, in the order: verdict check, hack zeroing, keep or drop, length penalty, outcome advantage,
    redistribution, group-size correction.

    `outcomes` are all trajectories of the group, the invalid ones included. Without a usable verdict the outcome advantages
    stand; `fallback` then says why: the reason given here ("late", "failed: ..."), "invalid: ..." for a verdict that fails
    its check, "no verdict" where a kept group has none though the method needs one. Every method zeroes confirmed hacks, and
    applies penalty and correction where `params` ask for them. Nothing of the caller's is changed. Raises ValueError for a
    member that is no outcome, a reward outside [0, 1], a `valid` that is no boolean, an id given twice, and, where the length
    penalty is on, for a length that is missing or no number."""
    ledger = open_ledger(outcomes, verdict, params, fallback)
    stages = ledger.stages
    if stages is None:
        return Credit(params.method, False, ledger.dropped, ledger.fallback, 1.0, False, {})
    moved = stages.redistribution
    return Credit(
        params.method,
        True,
        None,
        ledger.fallback,
        to_float(moved.bounded),
        moved.capped,
        _floats(stages.advantages),
        stages.tiers,
        stages.factors,
        _floats(stages.penalties),
    )


def to_float(value: Fraction) -> float:
    """The nearest double; the largest one where `value`, a lambda of minute factors, lies beyond."""
    return float(min(value, Fraction(sys.float_info.max)))


def _floats(values: Mapping[str, Fraction]) -> dict[str, float]:
    return {id: float(value) for id, value in values.items()}
