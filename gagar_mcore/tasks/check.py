"""Whether tasks can be used: read, validated and, on request, run with and without their solution."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.tasks.history import count_history
from gagar_mcore.tasks.load import load_task, missing_parts, task_directories
from gagar_mcore.tasks.solution import NoSolution, solution_patch
from gagar_mcore.tasks.swe import SweRecord, read_records
from gagar_mcore.tasks.swe_write import write_swe_task
from gagar_mcore.tasks.task import Task, TaskError
from gagar_mcore.verify.verifier import SuiteRun, Verifier


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`problem` is None for a usable task. `missing`: parts without which it cannot be run here; they make a task unusable
    where it was to be run, not where it was only read. `warnings`: what its files say and is not heeded here."""

    directory: Path
    task_id: str
    problem: str | None
    missing: tuple[str, ...] = ()
    ran: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return self.problem is None

    def __str__(self) -> str:
        name = self.task_id or self.directory.name
        if self.problem is not None:
            return f"{name}: unusable: {self.problem}"
        if self.missing:
            return f"{name}: valid; cannot be run here, missing: {'; '.join(self.missing)}"
        return f"{name}: ok, fails with the bug and passes with the solution" if self.ran else f"{name}: valid"

    def lines(self) -> list[str]:
        """What to print of it, one line a warning."""
        return [str(self), *(f"  warning: {warning}" for warning in self.warnings)]


async def check_task(directory: Path, verifier: Verifier | None) -> CheckResult:
    """Without a verifier the task is read and validated only. Raises SandboxLost, SandboxUnavailable."""
    try:
        task = load_task(directory)
    except TaskError as error:
        return CheckResult(directory, "", str(error))
    missing = tuple(missing_parts(task))
    if verifier is None:
        return CheckResult(directory, task.id, None, missing, warnings=task.warnings)
    if missing:
        lacking = f"cannot be run, missing: {'; '.join(missing)}"
        return CheckResult(directory, task.id, lacking, missing, warnings=task.warnings)
    problem = await _history_problem(task, verifier) or await run_problem(task, verifier)
    return CheckResult(directory, task.id, problem, ran=True, warnings=task.warnings)


async def check_tasks(path: Path, verifier: Verifier | None) -> list[CheckResult]:
    """`check_task` for the task that `path` is, for each of the folder, or for each record of SWE-bench or SWE-smith in the file.
    Raises TaskError where there is none."""
    if not path.is_file():
        return await gather_all(*(check_task(directory, verifier) for directory in task_directories(path)))
    records = read_records(path)
    with tempfile.TemporaryDirectory(prefix="gagar-records-") as folder:
        return await gather_all(*(_check_record(record, Path(folder), verifier) for record in records))


async def _check_record(record: SweRecord, folder: Path, verifier: Verifier | None) -> CheckResult:
    directory = folder / record.instance_id
    if record.lacks:
        missing = (f"{', '.join(record.lacks)} (take the record from the full data set)",)
        problem = f"cannot be run, missing: {missing[0]}" if verifier else None
        return CheckResult(directory, record.instance_id, problem, missing)
    try:
        write_swe_task(record, folder)
    except TaskError as error:
        return CheckResult(directory, record.instance_id, str(error))
    return await check_task(directory, verifier)


def closing_line(results: Sequence[CheckResult]) -> str:
    usable = sum(result.usable for result in results)
    return f"{usable} of {len(results)} tasks usable"


async def run_problem(task: Task, verifier: Verifier, untouched: SuiteRun | None = None) -> str | None:
    """Why the tests do not tell the bug from the solution; None where they do. untouched: a run on the repository as it is, where
    there has been one. Raises SandboxLost, SandboxUnavailable."""
    untouched = untouched or await verifier.run_tests(task, "")
    if problem := _mismatch(untouched, "the untouched repository", task.fail_to_pass, task.pass_to_pass):
        return problem
    if not task.listed and (untouched.report.reward or 0) >= 1:
        return "on the untouched repository: the reward file says 1"
    try:
        solved = await verifier.run_tests(task, await solution_patch(task, verifier))
    except NoSolution as error:
        return f"on the solution: {error}"
    if not task.listed and (solved.report.reward or 0) < 1 and solved.problem is None:
        return f"on the solution: the reward file says {solved.report.reward}"
    return _mismatch(solved, "the solution", (), task.listed)


async def _history_problem(task: Task, verifier: Verifier) -> str | None:
    if not (task.repository / ".git").exists():
        return None
    try:
        problem = (await count_history(task, verifier.pool)).problem()
    except TaskError as error:
        return str(error)
    return problem and f"environment/app {problem}; gagar tasks clean {task.directory} mends it"


def _mismatch(run: SuiteRun, where: str, failing: Sequence[str], passing: Sequence[str]) -> str | None:
    if trouble := run.fault or run.problem or ", ".join(run.suspicion.reasons):
        return f"on {where}: {' '.join(trouble.split())}"
    for name in failing:
        if run.report.tests.get(name) == "passed":
            return f"on {where}: {name} is in f2p_node_ids and passes"
    for name in passing:
        if (status := run.report.tests.get(name, "missing")) != "passed":
            return f"on {where}: {name} should pass and is {status}"
    return None
