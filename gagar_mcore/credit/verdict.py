"""Is a verdict usable for this group? Types are strict: "false" is no boolean, True is no 1."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gagar_mcore.credit.checks import discount
from gagar_mcore.credit.params import CRITERIA, CreditParams
from gagar_mcore.credit.tiers import tier
from gagar_mcore.records.types import Grade, Verdict

FLAGS = ("rewrite", "workaround", "severe_process", "regression")


class VerdictError(ValueError):
    """A verdict that cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True)
class FactorVerdict:
    """A verdict that states the discount factors of the passing trajectories itself."""

    factors: dict[str, float]
    hacks: list[str] = field(default_factory=list)


def check_verdict(verdict: Verdict | FactorVerdict, passing: Collection[str], params: CreditParams) -> None:
    """Raise VerdictError unless `verdict` judges every passing trajectory once and nothing else.

    A confirmed hack is a passing trajectory; it may be graded too, which changes nothing."""
    passing = set(passing)
    hacks = _checked_hacks(verdict.hacks, passing)
    if isinstance(verdict, FactorVerdict):
        _check_ids("factors", verdict.factors, passing, hacks)
        for id, factor in verdict.factors.items():
            _check_factor(id, factor)
        return
    _check_ids("grades", verdict.grades, passing, hacks)
    for id, grade in verdict.grades.items():
        _check_grade(id, grade)
    _check_ranks({id: grade for id, grade in verdict.grades.items() if id not in hacks}, len(verdict.grades), params)


def _checked_hacks(hacks: Any, passing: set[str]) -> set[str]:
    if not isinstance(hacks, list) or not all(isinstance(id, str) for id in hacks):
        raise VerdictError("hacks: must be a list of ids")
    _refuse_strangers("hacks", hacks, passing)
    if len(set(hacks)) < len(hacks):
        raise VerdictError("hacks: an id is given twice")
    return set(hacks)


def _check_ids(name: str, judged: Mapping[str, Any], passing: set[str], hacks: set[str]) -> None:
    if not isinstance(judged, dict):
        raise VerdictError(f"{name}: must be a mapping from id")
    _refuse_strangers(name, judged, passing)
    missing = passing - hacks - judged.keys()
    if missing:
        raise VerdictError(f"{name}: passing trajectory {min(missing)!r} is missing")


def _refuse_strangers(name: str, ids: Iterable[str], passing: set[str]) -> None:
    for id in ids:
        if id not in passing:
            raise VerdictError(f"{name}: {id!r} is not a passing trajectory of this group")


def _check_factor(id: str, factor: Any) -> None:
    if not discount(factor):
        raise VerdictError(f"factors.{id}: must be a number in (0, 1], got {factor!r}")


def _check_grade(id: str, grade: Any) -> None:
    if not isinstance(grade, Grade):
        raise VerdictError(f"grades.{id}: must be a grade")
    for name in CRITERIA:
        value = getattr(grade, name)
        if type(value) is not int or not 1 <= value <= 5:
            raise VerdictError(f"grades.{id}.{name}: must be an integer from 1 to 5, got {value!r}")
    for name in FLAGS:
        if type(getattr(grade, name)) is not bool:
            raise VerdictError(f"grades.{id}.{name}: must be true or false, got {getattr(grade, name)!r}")
    if grade.rank is not None and (type(grade.rank) is not int or grade.rank < 1):
        raise VerdictError(f"grades.{id}.rank: must be a positive integer, got {grade.rank!r}")


def _check_ranks(grades: Mapping[str, Grade], graded: int, params: CreditParams) -> None:
    """Ranks are consistent: none above the number of graded trajectories, and within a tier all have one or none has."""
    ranked: dict[int, bool] = {}
    for id, grade in grades.items():
        if grade.rank is not None and grade.rank > graded:
            raise VerdictError(f"grades.{id}.rank: must be at most {graded}, the number of graded trajectories, got {grade.rank}")
        if ranked.setdefault(tier(grade, params), grade.rank is not None) != (grade.rank is not None):
            raise VerdictError(f"grades.{id}.rank: within a tier give every trajectory a rank, or none")
