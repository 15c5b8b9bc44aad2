"""The sandbox that a session on a task works in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.tasks.history import clean_inside
from gagar_mcore.tasks.task import Task, TaskError
from gagar_mcore.verify.patch import BASE
from gagar_mcore.verify.restore import NotHere, copy_of_base
from gagar_sandbox.types import ExecResult, Limits, OnOutput, Sandbox, SandboxLost, SandboxPool

PREPARE_S = 300.0


@dataclass(frozen=True, slots=True)
class Furnished:
    """A sandbox whose commands see the task's variables beside their own."""

    sandbox: Sandbox
    environment: Mapping[str, str]

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        output_limit: int = 65536,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """See Sandbox.exec."""
        both = {**self.environment, **(env or {})}
        return await self.sandbox.exec(
            command, timeout_s=timeout_s, stdin=stdin, env=both, output_limit=output_limit, on_output=on_output
        )

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """See Sandbox.read."""
        return await self.sandbox.read(path, max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """See Sandbox.write."""
        await self.sandbox.write(path, data)

    async def snapshot(self) -> None:
        """See Sandbox.snapshot."""
        await self.sandbox.snapshot()

    async def reset(self) -> None:
        """See Sandbox.reset."""
        await self.sandbox.reset()

    async def close(self) -> None:
        """See Sandbox.close."""
        await self.sandbox.close()


async def open_room(pool: SandboxPool, task: Task, most: Limits, read_only: Mapping[str, Path]) -> Sandbox:
    """A fresh sandbox with the task's repository, packages, resources and variables, `read_only` beside, and the untouched
    repository where `extract_patch` looks for it. A repository that its image has loses what the base commit does not know.
    Raises SandboxLost, SandboxUnavailable."""
    mounted = {BASE: task.repository} if task.repository.is_dir() else {}
    sandbox = await pool.acquire(task.sandbox(most, {**mounted, **read_only}))
    if not mounted:
        try:
            await clean_inside(sandbox, task, PREPARE_S)
            if task.artifact is None:
                await copy_of_base(sandbox, task.workdir, PREPARE_S)
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, NotHere | TaskError):
                raise SandboxLost(str(error)) from error
            raise
    return Furnished(sandbox, task.environment) if task.environment else sandbox
