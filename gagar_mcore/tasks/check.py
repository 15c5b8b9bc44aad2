"""Whether tasks can be used: read, validated and, on request, run with and without their solution."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.tasks.load import load_task, missing_parts, task_directories
from gagar_mcore.tasks.task import Task, TaskError
from gagar_mcore.verify.verifier import SuiteRun, Verifier


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`problem` is None for a usable task. `missing`: parts without which it cannot be run here; they make a task unusable
    where it was to be run, not where it was only read."""

    directory: Path
    task_id: str
    problem: str | None
    missing: tuple[str, ...] = ()
    ran: bool = False

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


async def check_task(directory: Path, verifier: Verifier | None) -> CheckResult:
    """Without a verifier the task is read and validated only. Raises SandboxLost, SandboxUnavailable."""
    try:
        task = load_task(directory)
    except TaskError as error:
        return CheckResult(directory, "", str(error))
    missing = tuple(missing_parts(task))
    if verifier is None:
        return CheckResult(directory, task.id, None, missing)
    if missing:
        return CheckResult(directory, task.id, f"cannot be run, missing: {'; '.join(missing)}", missing)
    return CheckResult(directory, task.id, await run_problem(task, verifier), ran=True)


async def check_tasks(path: Path, verifier: Verifier | None) -> list[CheckResult]:
    """`check_task` for the task that `path` is, or for each of the folder. Raises TaskError where there is none."""
    return await gather_all(*(check_task(directory, verifier) for directory in task_directories(path)))


def closing_line(results: Sequence[CheckResult]) -> str:
    usable = sum(result.usable for result in results)
    return f"{usable} of {len(results)} tasks usable"


async def run_problem(task: Task, verifier: Verifier) -> str | None:
    """Why the tests do not tell the bug from the solution; None where they do. Raises SandboxLost, SandboxUnavailable."""
    untouched = await verifier.run_tests(task, "")
    if problem := _mismatch(untouched, "the untouched repository", task.fail_to_pass, task.pass_to_pass):
        return problem
    patch = (task.directory / "solution" / "fix.patch").read_text(errors="surrogateescape")
    solved = await verifier.run_tests(task, patch)
    return _mismatch(solved, "the solution", (), task.fail_to_pass + task.pass_to_pass)


def _mismatch(run: SuiteRun, where: str, failing: Sequence[str], passing: Sequence[str]) -> str | None:
    if trouble := run.fault or run.problem:
        return f"on {where}: {' '.join(trouble.split())}"
    for name in failing:
        if run.tests.get(name) == "passed":
            return f"on {where}: {name} is in f2p_node_ids and passes"
    for name in passing:
        if (status := run.tests.get(name, "missing")) != "passed":
            return f"on {where}: {name} should pass and is {status}"
    return None
