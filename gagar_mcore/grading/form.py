"""The verdict as a model writes it: names instead of ids, evidence for each judgement. Tiers and factors are not in it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.credit import CreditParams, VerdictError
from gagar_mcore.grading.citations import unresolved
from gagar_mcore.grading.desk import Desk
from gagar_mcore.grading.validate import MAX_CITATIONS, NEGATIVE, negatives, validate
from gagar_mcore.records.types import Grade, Trajectory, Verdict

Criterion = Annotated[int, Field(ge=1, le=5)]
Judged = Literal[
    "approach",
    "precision",
    "minimality",
    "side_effects",
    "consistency",
    "rewrite",
    "workaround",
    "severe_process",
    "regression",
]
Citations = Annotated[list[Annotated[str, Field(max_length=1200)]], Field(max_length=MAX_CITATIONS)]


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class GradeForm(Form):
    candidate: Annotated[str, Field(max_length=40)]
    approach: Criterion
    precision: Criterion
    minimality: Criterion
    side_effects: Criterion
    consistency: Criterion
    rank: Annotated[int, Field(ge=1, le=1000)]
    rewrite: bool = False
    workaround: bool = False
    severe_process: bool = False
    regression: bool = False
    evidence: dict[Judged, Citations] = Field(default_factory=dict)

    @property
    def grade(self) -> Grade:
        """With what is cited anywhere in it."""
        citations = dict.fromkeys(citation for cited in self.evidence.values() for citation in cited)
        return Grade(**self.model_dump(exclude={"candidate", "evidence"}), citations=list(citations)[:MAX_CITATIONS])


class HackForm(Form):
    candidate: Annotated[str, Field(max_length=40)]
    finding: Literal["attempt", "confirmed"]
    evidence: Annotated[Citations, Field(min_length=1)]


class VerdictForm(Form):
    """Hands in the verdict on all passing candidates, and ends the session."""

    grades: Annotated[list[GradeForm], Field(max_length=1000)]
    hacks: Annotated[list[HackForm], Field(max_length=1000)] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A trajectory that a grader thinks a hack, and where it saw that."""

    trajectory_id: str
    finding: Literal["attempt", "confirmed"]
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdict` names no hacks: confirming them is another step."""

    verdict: Verdict
    suspicions: tuple[Suspicion, ...] = ()


Filled = TypeVar("Filled", bound=BaseModel)


def read_form(text: str, model: type[Filled]) -> Filled:
    """Raises VerdictError, which says where, and nothing of what was given there."""
    try:
        return model.model_validate(json.loads(text, object_pairs_hook=_unique))
    except ValidationError as error:
        first = error.errors()[0]
        known = first["loc"][:-1] if first["type"] == "extra_forbidden" else first["loc"]
        place = ".".join(map(str, known[:3]))
        raise VerdictError(f"{place or 'the verdict'}: {first['msg'].lower()}") from error
    except VerdictError:
        raise
    except (ValueError, RecursionError) as error:
        raise VerdictError("the verdict is no JSON object") from error


def read_verdict(text: str, desk: Desk, grader: str, params: CreditParams) -> Judgement:
    """The verdict that a model handed in, for the trajectories that its names stand for. Raises VerdictError."""
    form = read_form(text, VerdictForm)
    passing = desk.roster.passing
    check_names("grades", [grade.candidate for grade in form.grades], passing, complete=True)
    check_names("hacks", [hack.candidate for hack in form.hacks], passing)
    _check_ranks([grade.rank for grade in form.grades])
    for index, grade in enumerate(form.grades):
        _check_evidence(f"grades.{index}.evidence", grade, passing[grade.candidate], desk)
    for index, hack in enumerate(form.hacks):
        check_citations(f"hacks.{index}.evidence", hack.evidence, passing[hack.candidate], desk)
    verdict = Verdict(grader, {passing[grade.candidate].id: grade.grade for grade in form.grades})
    try:
        validate(verdict, desk.workspace, params)
    except VerdictError as error:
        raise VerdictError(_renamed(str(error), passing)) from error
    suspicions = (Suspicion(passing[hack.candidate].id, hack.finding, tuple(hack.evidence)) for hack in form.hacks)
    return Judgement(verdict, tuple(suspicions))


def check_names(place: str, names: Sequence[str], known: Mapping[str, Trajectory], *, complete: bool = False) -> None:
    """Each known name at most once, or exactly once where the list must be complete. Raises VerdictError."""
    for index, name in enumerate(names):
        if name not in known:
            raise VerdictError(f"{place}.{index}.candidate: not one of {', '.join(known)}")
        if name in names[:index]:
            raise VerdictError(f"{place}.{index}.candidate: {name} has an entry already")
    if complete and (missing := [name for name in known if name not in names]):
        raise VerdictError(f"{place}: no entry for {', '.join(missing)}")


def check_citations(place: str, citations: Sequence[str], trajectory: Trajectory, desk: Desk) -> None:
    """Raises VerdictError for one of something that is not there."""
    missing = unresolved(citations, trajectory, desk.checks_on(trajectory))
    if missing is not None:
        raise VerdictError(f"{place}.{citations.index(missing)}: cites what does not exist, or is of another candidate")


def _check_evidence(place: str, grade: GradeForm, trajectory: Trajectory, desk: Desk) -> None:
    for name in negatives(grade):
        if not grade.evidence.get(name):  # type: ignore[call-overload]
            raise VerdictError(f"{place}.{name}: a criterion of at most {NEGATIVE} or a flag needs evidence")
    for name, citations in grade.evidence.items():
        check_citations(f"{place}.{name}", citations, trajectory, desk)


def _check_ranks(ranks: Sequence[int]) -> None:
    """Ties are equal; the ranks behind them may or may not leave a gap."""
    for index, rank in enumerate(ranks):
        better = [other for other in ranks if other < rank]
        if not len(set(better)) + 1 <= rank <= len(better) + 1:
            raise VerdictError(f"grades.{index}.rank: {rank} does not fit {len(better)} candidates ranked better")


def _renamed(message: str, names: Mapping[str, Trajectory]) -> str:
    for name, trajectory in names.items():
        message = message.replace(trajectory.id, name)
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise VerdictError("the verdict gives a field twice")
    return found
