"""Whether a report can be believed: what the supervisor saw, held against what the report claims."""

from collections.abc import Iterator
from dataclasses import dataclass

from gagar_mcore.naming import some_of
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.report import Report

SLACK_S = 2.0
CORES = 64  # most that tests can have run at once
SLOW_S = 2.0  # a suite whose recorded time is below this may well take none
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`proofs`: contradictions that no honest run has: reward 0. `doubts`: what an honest run can have too: the run is repeated,
    and the worse result counts."""

    proofs: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.proofs or self.doubts)

    @property
    def reasons(self) -> tuple[str, ...]:
        return (*self.proofs, *self.doubts)


def suspect(report: Report, task: Task, exit_code: int, wall_s: float) -> Suspicion:
    """`wall_s`: of the whole run, as the supervisor saw it. What was not recorded when the task was made is not compared."""
    return Suspicion(tuple(_proofs(report, task, wall_s)), tuple(_doubts(report, task, exit_code, wall_s)))


def _proofs(report: Report, task: Task, wall_s: float) -> Iterator[str]:
    yield from report.evidence
    yield from (f"code of the repository reaches for {name}" for name in report.reached if name not in task.reached)
    yield from report.contradictions
    if any(seconds < 0 for seconds in report.seconds.values()):
        yield "a test took less than no time"
    claimed = sum(report.seconds.values())
    if claimed > CORES * (wall_s + SLACK_S) or max(report.seconds.values(), default=0.0) > wall_s + SLACK_S:
        yield f"tests claim {claimed:.1f} s of a run that took {wall_s:.1f} s"


def _doubts(report: Report, task: Task, exit_code: int, wall_s: float) -> Iterator[str]:
    statuses, inventory, listed = set(report.tests.values()), task.inventory, task.listed
    passed = bool(report.tests) and statuses == {"passed"}
    if passed and exit_code != 0:
        yield f"every test is reported as passed, and the exit code is {exit_code}"
    if report.reward is not None and report.reward < 1 and listed and all(report.tests.get(t) == "passed" for t in listed):
        yield f"every listed test is reported as passed, and the reward file says {report.reward:g}"
    if not inventory:
        return
    if unknown := sorted(name for name in set(report.tests) - set(inventory) if not name.startswith(task.unsteady)):
        yield f"tests that the task does not have: {some_of(unknown, MOST_NAMED)}"
    if absent := sorted(set(inventory) - set(report.tests)):
        yield f"tests that were not reported: {some_of(absent, MOST_NAMED)}"
    usual, claimed = sum(inventory.values()), sum(report.seconds.values())
    if usual > SLOW_S and min(wall_s, claimed) < usual / 20:
        yield f"tests that usually take {usual:.1f} s say {claimed:.1f} s, in a run of {wall_s:.1f} s"
