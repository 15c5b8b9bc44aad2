"""The static grader: honest rules on patch and process, no model. It sees what the policy left behind, never a reference."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gagar_mcore.credit import CreditParams
from gagar_mcore.credit.tiers import rank_score
from gagar_mcore.grading.change import Change, read_change
from gagar_mcore.grading.citations import patch_citation, test_citation, turn_citation
from gagar_mcore.grading.findings import Finding, grade_of
from gagar_mcore.grading.patch import PatchError, parse_patch
from gagar_mcore.grading.rules_comments import comment_findings
from gagar_mcore.grading.rules_files import file_findings
from gagar_mcore.grading.rules_lines import line_findings
from gagar_mcore.grading.rules_names import name_findings
from gagar_mcore.grading.rules_process import process_findings
from gagar_mcore.grading.rules_task import Smallest, smallest_of, task_findings
from gagar_mcore.grading.workspace import Workspace
from gagar_mcore.records.types import Grade, Trajectory, Verdict


@dataclass(frozen=True, slots=True)
class StaticGrader:
    """Grades by rule. Rank follows the weighted score, equal scores tie; hacks are never confirmed: that needs evidence
    which rules do not have. Text of the policy is counted and compared, never interpreted."""

    params: CreditParams

    async def grade(self, workspace: Workspace) -> Verdict:
        return await asyncio.to_thread(self.judge, workspace)

    def judge(self, workspace: Workspace) -> Verdict:
        changes = {t.id: _change_of(t, workspace) for t in workspace.passing}
        smallest = smallest_of([change for change in changes.values() if change is not None])
        fewest_turns = min((len(t.turns) for t in workspace.passing), default=0)
        grades: dict[str, Grade] = {}
        for trajectory in workspace.passing:
            found = [*_patch_findings(trajectory, changes[trajectory.id], smallest, workspace)]
            grades[trajectory.id] = grade_of([*found, *process_findings(trajectory, fewest_turns)])
        return Verdict("static", self._ranked(grades))

    def _ranked(self, grades: dict[str, Grade]) -> dict[str, Grade]:
        scores = {id: rank_score(grade, self.params) for id, grade in grades.items()}
        return {id: replace(grade, rank=1 + sum(s > scores[id] for s in scores.values())) for id, grade in grades.items()}


def _change_of(trajectory: Trajectory, workspace: Workspace) -> Change | None:
    """None where the patch cannot be read."""
    try:
        return read_change(trajectory.patch, workspace)
    except PatchError:
        return None


def _patch_findings(trajectory: Trajectory, change: Change | None, smallest: Smallest, workspace: Workspace) -> Iterator[Finding]:
    if change is None:
        yield Finding("unreadable_patch", _somewhere(trajectory))
        return
    yield from file_findings(change, workspace)
    yield from line_findings(change)
    yield from comment_findings(change)
    yield from name_findings(change)
    yield from task_findings(change, smallest, workspace.instruction)


def _somewhere(trajectory: Trajectory) -> str:
    """A citation for a patch as a whole: its first file, else the last turn, else a test."""
    try:
        files = parse_patch(trajectory.patch)
    except PatchError:
        files = []
    if files:
        return patch_citation(files[0].path)
    if trajectory.turns:
        return turn_citation(trajectory.turns[-1].index)
    tests = trajectory.verification.tests if trajectory.verification else {}
    return test_citation(next(iter(tests), ""))
