"""How far two verdicts on the same group agree: on order, and on tiers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gagar_mcore.credit import CreditParams
from gagar_mcore.credit.tiers import discount_factors, tied_groups
from gagar_mcore.records.types import Verdict


@dataclass(frozen=True, slots=True)
class Agreement:
    """Means over pairs of verdicts. `tau`: Kendall's tau-b of the orders, over the pairs where neither ties all; `tiers`: the
    share of trajectories in the same tier. NaN where there is no pair."""

    tau: float
    tiers: float
    pairs: int


def agreement(repeats: Sequence[Sequence[Verdict]], params: CreditParams) -> Agreement:
    """repeats: the usable verdicts on each group."""
    pairs = [pair for verdicts in repeats for pair in combinations(verdicts, 2)]
    taus = [tau for one, other in pairs if not math.isnan(tau := kendall_tau(places(one, params), places(other, params)))]
    return Agreement(_mean(taus), _mean([_same_tiers(one, other, params) for one, other in pairs]), len(pairs))


def places(verdict: Verdict, params: CreditParams) -> dict[str, int]:
    """The place of each graded trajectory, 1 the best, ties equal: tiers first, then rank, as the credit step orders them."""
    tiers, _ = discount_factors(verdict.grades, params)
    ordered = [
        ids
        for level in (1, 2, 3)
        for ids in tied_groups({id: grade for id, grade in verdict.grades.items() if tiers[id] == level}, params)
    ]
    return {id: place for place, ids in enumerate(ordered, start=1) for id in ids}


def kendall_tau(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Kendall's tau-b (M. G. Kendall, "The treatment of ties in ranking problems", 1945) over the ids of both; NaN where one of
    them ties all."""
    pairs = [(_sign(one[a] - one[b]), _sign(other[a] - other[b])) for a, b in combinations(sorted(one.keys() & other.keys()), 2)]
    untied = sum(x != 0 for x, _ in pairs) * sum(y != 0 for _, y in pairs)
    return sum(x * y for x, y in pairs) / math.sqrt(untied) if untied else math.nan


def _sign(difference: float) -> int:
    return (difference > 0) - (difference < 0)


def _same_tiers(one: Verdict, other: Verdict, params: CreditParams) -> float:
    first, second = discount_factors(one.grades, params)[0], discount_factors(other.grades, params)[0]
    shared = first.keys() & second.keys()
    return sum(first[id] == second[id] for id in shared) / len(shared) if shared else math.nan


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
