"""The patch that solves a task: as it lies there, or made by its script in a sandbox."""

from gagar_mcore.tasks.load import solution_files
from gagar_mcore.tasks.room import open_room
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import NO_PATCH, extract_patch
from gagar_mcore.verify.verifier import Verifier, ending

SOLUTION = "/solution"


class NoSolution(RuntimeError):
    """The solution of a task gives no patch; the message says why."""


async def solution_patch(task: Task, verifier: Verifier) -> str:
    """Raises NoSolution, SandboxLost, SandboxUnavailable."""
    found = solution_files(task)
    if not found:
        raise NoSolution("there is none")
    if found[0].suffix == ".patch":
        return found[0].read_text(errors="surrogateescape")
    sandbox = await open_room(verifier.pool, task, verifier.limits, {SOLUTION: found[0].parent})
    try:
        command = ["bash", f"{SOLUTION}/{found[0].name}"]
        result = await sandbox.exec(command, timeout_s=verifier.timeout_s)
        if result.outcome != "exited" or result.exit_code != 0:
            said = " ".join(result.stderr[-300:].decode(errors="replace").split())
            raise NoSolution(f"{found[0].name}: {ending(result)}: {said}")
        patch = await extract_patch(sandbox, task)
    finally:
        await sandbox.close()
    if not patch.strip() or patch.startswith(NO_PATCH):
        raise NoSolution(f"{found[0].name}: {patch.strip() or 'it changed nothing'}")
    return patch
