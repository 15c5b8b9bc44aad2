"""`gagar tasks make`, `import`, `check` and `clean`, and `gagar verify`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.check import check_tasks, closing_line
from gagar_mcore.tasks.history import clean_history
from gagar_mcore.tasks.load import load_task, load_tasks, missing_parts
from gagar_mcore.tasks.make import make_tasks
from gagar_mcore.tasks.package.make import make_from_package
from gagar_mcore.tasks.swe import read_records
from gagar_mcore.tasks.swe_write import write_swe_task
from gagar_mcore.tasks.task import Task, TaskError
from gagar_mcore.tracking.text import visible
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool

MOST = Limits(memory_mb=8192, processes=512, file_size_mb=256, disk_mb=1024)  # that a task's own tests get here
MOST_S = 3600.0
MOST_SHOWN = 20


async def make(seed: int, count: int, directory: Path, package: str | None = None) -> str:
    """Make tasks in a new or empty folder, generated or from a package's code; what to say of it. Raises TaskError, SandboxLost,
    SandboxUnavailable."""
    _check_empty(directory)
    async with _sandboxes() as pool:
        if package is not None:
            from_package = await make_from_package(package, count, seed, directory, pool)
            thrown = ", ".join(f"{number} of which {why}" for why, number in from_package.thrown.most_common())
            drawn = f"{from_package.thrown.total()} bugs thrown away" + (f", {thrown}" if thrown else "")
            return f"{len(from_package.tasks)} tasks in {directory}, each verified by {from_package.tests} tests; {drawn}"
        made = await make_tasks(seed, count, directory, pool)
    return f"{len(made.tasks)} tasks in {directory}, each verified; {made.redrawn} drawn again"


async def check(directory: Path, run: bool) -> bool:
    """Print one line a task and a closing count; True where all are usable. Raises TaskError, SandboxLost, SandboxUnavailable."""
    async with _sandboxes() as pool:
        results = await check_tasks(directory, Verifier(pool, MOST, MOST_S) if run else None)
    print(*(line for result in results for line in result.lines()), closing_line(results), sep="\n")
    return all(result.usable for result in results)


def import_records(records: Path, directory: Path) -> str:
    """Write a task directory for each record of SWE-bench or SWE-smith; what to say of it. Raises TaskError."""
    _check_empty(directory)
    found = read_records(records)
    for record in found:
        write_swe_task(record, directory)
    return f"{len(found)} tasks in {directory}"


async def clean(directory: Path) -> str:
    """Leave of the history of each task's repository what the policy may see; what to say of it. Raises TaskError, SandboxLost,
    SandboxUnavailable."""
    tasks = [task for task in load_tasks(directory, runnable=False) if (task.repository / ".git").is_dir()]
    async with _sandboxes() as pool:
        cleaned = [(task, await clean_history(task, pool)) for task in tasks]
    lines = [f"{task.id}: {history.objects} objects, all reached from {history.base}" for task, history in cleaned]
    return "\n".join([*lines, f"{len(cleaned)} repositories cleaned"])


async def verify(directory: Path, patch: Path) -> bool:
    """Run a task's tests on a patch and print what they say; True for reward 1. Raises TaskError, SandboxUnavailable."""
    task = load_task(directory)
    if not (task.tests / "test.sh").is_file() or not task.repository.is_dir() or task.unsupported:
        raise TaskError(f"{directory}: cannot be run, missing: {'; '.join(missing_parts(task))}")
    try:
        text = patch.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise TaskError(f"{patch}: {error.strerror}; name a file that holds the patch") from error
    async with _sandboxes() as pool:
        verification = await Verifier(pool, MOST, MOST_S).verify(task, text)
    print("\n".join(describe(task, verification)))
    return verification.reward == 1.0


def describe(task: Task, verification: Verification) -> list[str]:
    """The tests by their status, the reward, the seconds, and why."""
    lines = []
    for kind, names in (("fail to pass", task.fail_to_pass), ("pass to pass", task.pass_to_pass)):
        passed = sum(verification.tests[name] == "passed" for name in names)
        lines.append(f"{kind}: {passed} of {len(names)} passed")
    failing = [(name, status) for name, status in verification.tests.items() if status != "passed"]
    lines += [f"  {status}: {visible(name)}" for name, status in failing[:MOST_SHOWN]]
    lines += [f"  and {len(failing) - MOST_SHOWN} more"] if len(failing) > MOST_SHOWN else []
    lines += [f"suspicious: {visible(reason)}" for reason in verification.suspicion]
    if verification.infrastructure_error is not None:
        lines.append(f"not the patch's fault: {visible(verification.infrastructure_error)}")
    if verification.reward < 1:
        lines += ["what the tests printed last:", *(f"  {line}" for line in visible(verification.output).splitlines())]
    return [*lines, f"reward {verification.reward:g} in {verification.seconds:.1f} s"]


def _check_empty(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise TaskError(f"{directory}: is no empty folder; name another one")


@asynccontextmanager
async def _sandboxes() -> AsyncIterator[LocalPool]:
    pool = LocalPool()
    try:
        yield pool
    finally:
        await pool.close()
