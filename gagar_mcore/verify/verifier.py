"""A patch against its task's own tests, in a fresh sandbox."""

import time
from dataclasses import dataclass, field

from gagar_mcore.records.types import TestStatus, Verification
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import GIT_ENVIRONMENT, NO_PATCH
from gagar_mcore.verify.report import MAX_REPORT_BYTES, REPORT, ReportError, parse_report
from gagar_sandbox.types import ExecResult, Limits, Sandbox, SandboxLost, SandboxPool, SandboxSpec

TESTS = "/tests"
OUTPUT_CHARACTERS = 4000

_RUN = 'mkdir -p "${1%/*}"; if [ -x "$2" ]; then exec "$2"; else exec bash "$2"; fi'


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of a task's tests. `tests` holds what the report says of any test. `problem`: why there is no usable report.
    `patch_refused`: the patch did not apply, so nothing ran. `fault`: what this machine lacks to run anything."""

    tests: dict[str, TestStatus] = field(default_factory=dict)
    output: str = ""
    problem: str | None = None
    patch_refused: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Verifier:
    """`timeout_s` bounds one run of the tests, as does the task's own limit."""

    pool: SandboxPool
    limits: Limits
    timeout_s: float

    async def verify(self, task: Task, patch: str) -> Verification:
        """Reward 1.0 exactly when every test that the task lists is reported as passed.

        A patch that is empty or does not apply fails without a run. A run without a usable report (timeout, killed, broken or
        missing report, sandbox lost twice) is blamed on the patch unless the untouched repository fails to give one too: only
        then is it an infrastructure error, which no patch can bring about. Raises SandboxUnavailable."""
        started = time.monotonic()
        run = await self._judge(task, patch)
        fault = run.fault or (await self._fault(task) if run.problem and not run.patch_refused else None)
        tests = {name: run.tests.get(name, "missing") for name in (*task.fail_to_pass, *task.pass_to_pass)}
        passed = fault is None and run.problem is None and all(status == "passed" for status in tests.values())
        output = "\n".join(filter(None, (run.output, run.problem)))[-OUTPUT_CHARACTERS:]
        return Verification(float(passed), tests, output, time.monotonic() - started, fault)

    async def run_tests(self, task: Task, patch: str) -> SuiteRun:
        """One run in a fresh sandbox, on the untouched repository where `patch` is "". Raises SandboxLost, SandboxUnavailable."""
        spec = SandboxSpec(task.repository, task.workdir, {TESTS: task.tests}, self.limits)
        sandbox = await self.pool.acquire(spec)
        try:
            refused = await self._apply(sandbox, patch) if patch else None
            return refused or await self._test(sandbox, task)
        finally:
            await sandbox.close()

    async def _judge(self, task: Task, patch: str) -> SuiteRun:
        if not patch.strip():
            return SuiteRun(problem="the patch is empty", patch_refused=True)
        if patch.startswith(NO_PATCH):
            return SuiteRun(problem=patch.strip(), patch_refused=True)
        return await self._run_persistently(task, patch)

    async def _run_persistently(self, task: Task, patch: str) -> SuiteRun:
        """A lost sandbox is tried once more."""
        try:
            return await self.run_tests(task, patch)
        except SandboxLost:
            pass
        try:
            return await self.run_tests(task, patch)
        except SandboxLost as error:
            return SuiteRun(problem=f"sandbox lost: {error}")

    async def _fault(self, task: Task) -> str | None:
        """Why the tests cannot run here at all, None where they can."""
        control = await self._run_persistently(task, "")
        return control.problem and f"the tests do not run on the untouched repository either: {control.problem}"

    async def _apply(self, sandbox: Sandbox, patch: str) -> SuiteRun | None:
        """None where the patch is in place."""
        data = patch.encode(errors="surrogateescape")
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        result = await sandbox.exec(command, timeout_s=self.timeout_s, stdin=data, env=GIT_ENVIRONMENT)
        if result.outcome == "exited" and result.exit_code in (126, 127):
            return SuiteRun(fault="git does not start in the sandbox; install it", patch_refused=True)
        if result.outcome == "exited" and result.exit_code == 0:
            return None
        return SuiteRun(problem=f"the patch does not apply: {_ending(result)}\n{_text(result)}", patch_refused=True)

    async def _test(self, sandbox: Sandbox, task: Task) -> SuiteRun:
        command = ["sh", "-c", _RUN, "sh", REPORT, f"{TESTS}/test.sh"]
        result = await sandbox.exec(command, timeout_s=min(self.timeout_s, task.verifier_timeout_s))
        output = _text(result)
        if result.outcome != "exited" or result.exit_code >= 128:
            return SuiteRun(output=output, problem=f"the tests were cut short: {_ending(result)}")
        try:
            return SuiteRun(parse_report(await sandbox.read(REPORT, MAX_REPORT_BYTES)), output)
        except (OSError, ReportError) as error:
            return SuiteRun(output=output, problem=f"no usable report ({_ending(result)}): {error}")


def _ending(result: ExecResult) -> str:
    return f"exit code {result.exit_code}" if result.outcome == "exited" else result.outcome.replace("_", " ")


def _text(result: ExecResult) -> str:
    return (result.stdout + result.stderr)[-OUTPUT_CHARACTERS:].decode(errors="replace")
