"""From grades to tiers, rank order and discount factors."""

import math
from collections.abc import Mapping
from itertools import groupby

from gagar_mcore.credit.params import CRITERIA, CreditParams
from gagar_mcore.records.types import Grade


def rank_score(grade: Grade, params: CreditParams) -> float:
    """W = sum of weight x criterion; rounded so that scores equal on paper are equal here."""
    return round(math.fsum(float(w) * getattr(grade, name) for w, name in zip(params.weights, CRITERIA, strict=True)), 9)


def tier(grade: Grade, params: CreditParams) -> int:
    """T3 is tested first, then T1; T2 is the rest."""
    careless = grade.minimality <= params.t3_minimality and grade.side_effects <= params.t3_side_effects
    if grade.rewrite or grade.workaround or grade.approach <= params.t3_approach or careless:
        return 3
    clean = all(getattr(grade, name) >= params.t1_min for name in CRITERIA)
    return 1 if clean and not grade.severe_process and not grade.regression else 2


def tied_groups(grades: Mapping[str, Grade], params: CreditParams) -> list[list[str]]:
    """Ids in rank order, best first, ties together. Order is by rank where the grader gave ranks, else by W."""

    def place(id: str) -> float:
        grade = grades[id]
        return -rank_score(grade, params) if grade.rank is None else grade.rank

    return [list(ids) for _, ids in groupby(sorted(grades, key=place), key=place)]


def discount_factors(grades: Mapping[str, Grade], params: CreditParams) -> tuple[dict[str, int], dict[str, float]]:
    """Tier and factor f in (0, 1] of every graded id. Tiers order first: a T2 never outranks a T1, whatever its rank.

    T1: `t1_top` for the top tied group, else `t1_other`. T2: linear over its tied groups, `t2_best` to `t2_worst`. T3: `t3`."""
    tiers = {id: tier(grade, params) for id, grade in grades.items()}
    factors: dict[str, float] = {}
    for level in (1, 2, 3):
        groups = tied_groups({id: grades[id] for id in grades if tiers[id] == level}, params)
        for index, ids in enumerate(groups):
            factors |= dict.fromkeys(ids, float(_factor(level, index, len(groups), params)))
    return tiers, factors


def _factor(level: int, index: int, groups: int, params: CreditParams) -> float:
    if level == 1:
        return params.t1_top if index == 0 else params.t1_other
    if level == 3:
        return params.t3
    share = index / (groups - 1) if groups > 1 else 0.0
    return params.t2_best * (1 - share) + params.t2_worst * share
