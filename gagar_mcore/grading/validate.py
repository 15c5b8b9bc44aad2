"""Is a verdict usable? Its form and its ids, as the credit step wants them, and its citations."""

from collections.abc import Sequence
from typing import Any

from gagar_mcore.credit import CreditParams, VerdictError, check_verdict
from gagar_mcore.credit.params import CRITERIA
from gagar_mcore.credit.verdict import FLAGS
from gagar_mcore.grading.citations import unresolved
from gagar_mcore.grading.workspace import Workspace
from gagar_mcore.records.types import Grade, Trajectory, Verdict

NEGATIVE = 2
MAX_CITATIONS = 64


def validate(verdict: Verdict, workspace: Workspace, params: CreditParams) -> None:
    """Raise VerdictError unless the verdict judges every passing trajectory once, in range, and every citation resolves.

    A grade with a negative judgement, a criterion of at most `NEGATIVE` or a flag, cites something."""
    if not isinstance(verdict, Verdict):
        raise VerdictError(f"verdict: must be a verdict, got {type(verdict).__name__}")
    check_verdict(verdict, [t.id for t in workspace.passing], params)
    checks = workspace.checks()
    for trajectory in workspace.passing:
        if trajectory.id in verdict.grades:
            own = [number for number, id in checks.items() if id == trajectory.id]
            _check_citations(verdict.grades[trajectory.id], trajectory, own)


def negatives(grade: Any) -> list[str]:
    """The negative judgements of a grade, or of what has its criteria and flags."""
    return [*(name for name in CRITERIA if getattr(grade, name) <= NEGATIVE), *(flag for flag in FLAGS if getattr(grade, flag))]


def _check_citations(grade: Grade, trajectory: Trajectory, checks: Sequence[int]) -> None:
    where = f"grades.{trajectory.id}.citations"
    citations = grade.citations
    if not isinstance(citations, list) or not all(isinstance(citation, str) for citation in citations):
        raise VerdictError(f"{where}: must be a list of texts")
    if len(citations) > MAX_CITATIONS:
        raise VerdictError(f"{where}: must be at most {MAX_CITATIONS}, got {len(citations)}")
    if (citation := unresolved(citations, trajectory, checks)) is not None:
        raise VerdictError(f"{where}: {citation[:200]!r} does not exist")
    if negatives(grade) and not citations:
        raise VerdictError(f"{where}: a criterion of at most {NEGATIVE} or a flag needs a citation")
