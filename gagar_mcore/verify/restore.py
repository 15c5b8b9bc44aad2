"""Tests, settings and runners as the task has them, whatever the patch made of them: see `inside/restore.py`."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.naming import some_of
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import COPY
from gagar_sandbox.types import Sandbox

GUARD = "/guard"
INSIDE = Path(__file__).parent / "inside"
MOST_NAMED = 50


class NoRestore(RuntimeError):
    """What the patch changed could not be undone; the message says why."""


class NotHere(RuntimeError):
    """The sandbox lacks what restoring takes, whatever the patch."""


class _Done(BaseModel):
    model_config = ConfigDict(strict=True)
    restored: Annotated[list[str], Field(max_length=1000)]
    removed: Annotated[list[str], Field(max_length=1000)]


async def copy_of_base(sandbox: Sandbox, workdir: str, timeout_s: float) -> None:
    """Of an image's own files, before anything of the policy is among them. Raises NotHere, SandboxLost."""
    result = await sandbox.exec(["cp", "-a", workdir, COPY], timeout_s=timeout_s)
    if result.exit_code != 0:
        raise NotHere(f"cannot copy {workdir}: {result.stderr[-300:].decode(errors='replace')}")


async def restore(sandbox: Sandbox, base: str, task: Task, timeout_s: float) -> tuple[str, ...]:
    """What was restored and removed, to be shown. Raises NoRestore, NotHere, SandboxLost."""
    command = ["python3", "-I", "-S", f"{GUARD}/restore.py", base, task.workdir, task.language, *task.guarded]
    result = await sandbox.exec(command, timeout_s=timeout_s, output_limit=1 << 20)
    if result.outcome == "exited" and result.exit_code in (126, 127):
        raise NotHere("python3 does not start in the sandbox; tests and settings are restored by it: put it into the image")
    try:
        done = _Done.model_validate_json(result.stdout)
    except ValidationError as error:
        said = " ".join((result.stderr or result.stdout)[-300:].decode(errors="replace").split())
        raise NoRestore(f"tests and settings could not be restored: exit code {result.exit_code}: {said}") from error
    named = {"restored before the tests": done.restored, "removed before the tests": done.removed}
    return tuple(f"{what}: {some_of([*map(repr, paths)], MOST_NAMED)}" for what, paths in named.items() if paths)
