"""`gagar tasks make` and `gagar tasks check`."""

from pathlib import Path

from gagar_mcore.tasks.check import check_tasks, closing_line
from gagar_mcore.tasks.make import VERIFIER_TIMEOUT_S, make_tasks
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool


async def make(seed: int, count: int, directory: Path) -> str:
    """Make tasks in a new or empty folder; what to say of it. Raises TaskError, SandboxLost, SandboxUnavailable."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise TaskError(f"{directory}: is no empty folder; name another one")
    pool = LocalPool()
    try:
        made = await make_tasks(seed, count, directory, pool)
    finally:
        await pool.close()
    return f"{len(made.tasks)} tasks in {directory}, each verified; {made.redrawn} drawn again"


async def check(directory: Path, run: bool) -> bool:
    """Print one line a task and a closing count; True where all are usable. Raises TaskError, SandboxLost, SandboxUnavailable."""
    pool = LocalPool()
    try:
        results = await check_tasks(directory, Verifier(pool, Limits(), VERIFIER_TIMEOUT_S) if run else None)
    finally:
        await pool.close()
    print(*results, closing_line(results), sep="\n")
    return all(result.usable for result in results)
