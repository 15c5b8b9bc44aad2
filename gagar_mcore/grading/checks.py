"""Checks of one candidate, each in a fresh sandbox that holds that candidate alone."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from gagar_mcore.tasks.room import open_room
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import GIT_ENVIRONMENT, split_note
from gagar_mcore.verify.verifier import Verifier, ending
from gagar_sandbox.types import ExecResult, Limits, Sandbox, SandboxLost, SandboxPool

SCRIPT_CHARACTERS = 20_000
OUTPUT_BYTES = 16_384

CheckKind = Literal["tests", "script"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`outcome`: in words of ours. `output`: what code of the policy may have written."""

    kind: CheckKind
    outcome: str
    output: str


@dataclass(frozen=True, slots=True)
class Checks:
    """`timeout_s` bounds one command, `deadline_s` a whole check, the wait for a sandbox included. No sandbox has a network."""

    pool: SandboxPool
    limits: Limits
    timeout_s: float
    deadline_s: float

    async def tests(self, task: Task, patch: str) -> CheckResult:
        """The task's own tests. Raises SandboxUnavailable."""
        if not task.tests.is_dir():
            return CheckResult("tests", "the tests of this task are not at hand", "")
        try:
            async with asyncio.timeout(self.deadline_s):
                found = await Verifier(self.pool, self.limits, self.timeout_s).verify(task, patch)
        except TimeoutError:
            return self._late("tests")
        if found.infrastructure_error is not None:
            return CheckResult("tests", "the tests could not be run here", found.output)
        passed = sum(status == "passed" for status in found.tests.values())
        verdict = "passed" if found.reward == 1.0 else "did not pass"
        return CheckResult("tests", f"{verdict}: {passed} of {len(found.tests)} tests", found.output)

    async def script(self, task: Task, patch: str, script: str) -> CheckResult:
        """`script`, run by bash in the repository as `patch` leaves it. Raises SandboxUnavailable."""
        try:
            async with asyncio.timeout(self.deadline_s):
                return await self._script(task, patch, script)
        except TimeoutError:
            return self._late("script")
        except SandboxLost:
            return CheckResult("script", "the sandbox was lost", "")

    async def _script(self, task: Task, patch: str, script: str) -> CheckResult:
        encodable = script.encode(errors="replace").decode()
        sandbox = await open_room(self.pool, task, self.limits, {})
        try:
            refused = await self._apply(sandbox, split_note(patch)[1])
            return refused or _result(await self._run(sandbox, ["bash", "-c", 'exec 2>&1; eval "$1"', "bash", encodable]))
        finally:
            await sandbox.close()

    async def _apply(self, sandbox: Sandbox, patch: str) -> CheckResult | None:
        """None where the patch is in place."""
        if not patch.strip():
            return None
        data = patch.encode(errors="surrogateescape")
        result = await self._run(sandbox, ["git", "apply", "--whitespace=nowarn", "-"], data)
        done = result.outcome == "exited" and result.exit_code == 0
        return None if done else CheckResult("script", "the patch does not apply", _text(result))

    async def _run(self, sandbox: Sandbox, command: list[str], stdin: bytes = b"") -> ExecResult:
        return await sandbox.exec(command, timeout_s=self.timeout_s, stdin=stdin, env=GIT_ENVIRONMENT, output_limit=OUTPUT_BYTES)

    def _late(self, kind: CheckKind) -> CheckResult:
        return CheckResult(kind, f"stopped after {self.deadline_s:g} s", "")


def _result(result: ExecResult) -> CheckResult:
    cut = ", output cut" if result.output_truncated else ""
    return CheckResult("script", f"{ending(result)}{cut}", _text(result))


def _text(result: ExecResult) -> str:
    return (result.stdout + result.stderr).decode(errors="replace")
