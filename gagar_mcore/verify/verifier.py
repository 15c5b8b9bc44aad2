"""A patch against its task's own tests, in a fresh sandbox."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.integrity import Suspicion, suspect
from gagar_mcore.verify.patch import BASE, COPY, GIT_ENVIRONMENT, NO_PATCH, difference, is_patch, split_note
from gagar_mcore.verify.persistence import twice
from gagar_mcore.verify.reading import read_report
from gagar_mcore.verify.report import Report, ReportError, worse
from gagar_mcore.verify.restore import GUARD, INSIDE, NoRestore, NotHere, copy_of_base, restore
from gagar_sandbox.types import ExecResult, Limits, Sandbox, SandboxLost, SandboxPool

TESTS = "/tests"
REPORTS = "/logs/verifier"
OUTPUT_CHARACTERS = 4000
LOG_BYTES = 4 << 20
SHUFFLE = "GAGAR_SHUFFLE"  # in the environment of a run that is repeated: the seed of another order

_RUN = f'mkdir -p "$1"; [ -z "${SHUFFLE}" ] || . {GUARD}/shuffle.sh; if [ -x "$2" ]; then exec "$2"; else exec bash "$2"; fi'


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of a task's tests. `problem`: why there is no usable report. `patch_refused`: the patch did not apply, so nothing
    ran. `fault`: what this machine lacks to run anything. `notes`: what was restored and left out before."""

    report: Report = field(default_factory=Report)
    output: str = ""
    problem: str | None = None
    patch_refused: bool = False
    fault: str | None = None
    notes: tuple[str, ...] = ()
    suspicion: Suspicion = field(default_factory=Suspicion)


@dataclass(frozen=True, slots=True)
class Verifier:
    """`timeout_s` bounds one run of the tests, as does the task's own limit; `limits` bound the task's resources."""

    pool: SandboxPool
    limits: Limits
    timeout_s: float

    async def verify(self, task: Task, patch: str) -> Verification:
        """Reward 1.0 exactly when every test that the task lists is reported as passed, by a report that can be believed; of a
        task that lists none, when its reward file says 1.

        A patch that is empty or does not apply fails without a run. A run without a usable report (timeout, killed, broken or
        missing report, sandbox lost twice) is blamed on the patch unless the untouched repository fails to give one too: only
        then is it an infrastructure error, which no patch can bring about. A reward that is doubted is held against that of
        a second run in another order, and the worse counts; a report that contradicts what was seen earns nothing.
        Raises SandboxUnavailable."""
        started = time.monotonic()
        note, patch = split_note(patch)
        run = await self._judge(task, patch)
        if run.suspicion.doubts and run.problem is None and _passes(task, run.report):
            run = _both(run, await self._again(task, patch))
        fault = run.fault or (await self._fault(task) if run.problem and not run.patch_refused else None)
        tests = {name: run.report.tests.get(name, "missing") for name in task.listed}
        passed = fault is None and run.problem is None and not run.suspicion.proofs and _passes(task, run.report)
        doubts = [f"suspicious: {reason}" for reason in run.suspicion.reasons]
        said = [run.output[-OUTPUT_CHARACTERS // 2 :], note, *run.notes, *doubts, run.problem]
        output = "\n".join(filter(None, said))[-OUTPUT_CHARACTERS:]
        seconds = time.monotonic() - started
        return Verification(float(passed), tests, output, seconds, fault, list(run.suspicion.reasons))

    async def run_tests(self, task: Task, patch: str, shuffle: int | None = None) -> SuiteRun:
        """One run in a fresh sandbox, on the untouched repository where `patch` is "". Raises SandboxLost, SandboxUnavailable."""
        notes: tuple[str, ...] = ()
        if task.artifact is not None and patch and is_patch(task.artifact, patch):
            restored = await self._restored(task, patch)
            if isinstance(restored, SuiteRun):
                return restored
            patch, notes = restored
        spec = task.sandbox(self.limits, {TESTS: task.tests, **self._mounts(task)})
        sandbox = await self.pool.acquire(replace(spec, image=task.tests_image) if spec.image else spec)
        try:
            if task.artifact is not None:
                await sandbox.write(task.artifact, patch.encode(errors="surrogateescape"))
            elif patch:
                placed = await self._apply(sandbox, task, patch)
                if isinstance(placed, SuiteRun):
                    return placed
                notes = placed
            return replace(await self._test(sandbox, task, shuffle), notes=notes)
        finally:
            await sandbox.close()

    async def _judge(self, task: Task, patch: str) -> SuiteRun:
        if not patch.strip():
            return SuiteRun(problem="the patch is empty", patch_refused=True)
        if patch.startswith(NO_PATCH):
            return SuiteRun(problem=patch.strip(), patch_refused=True)
        return await self._run_persistently(task, patch)

    async def _run_persistently(self, task: Task, patch: str, shuffle: int | None = None) -> SuiteRun:
        try:
            return await twice(lambda: self.run_tests(task, patch, shuffle))
        except SandboxLost as error:
            return SuiteRun(problem=f"sandbox lost: {error}")

    async def _again(self, task: Task, patch: str) -> SuiteRun:
        """In another order; in its own, where a runner of the task's gives no report in another."""
        run = await self._run_persistently(task, patch, shuffle=1)
        if run.problem is not None and not task.inventory:
            return await self._run_persistently(task, patch)
        return run

    async def _fault(self, task: Task) -> str | None:
        """Why the tests cannot run here at all, None where they can."""
        control = await self._run_persistently(task, "")
        return control.problem and f"the tests do not run on the untouched repository either: {control.problem}"

    def _mounts(self, task: Task) -> Mapping[str, Path]:
        return {GUARD: INSIDE, **({BASE: task.repository} if task.repository.is_dir() else {})}

    async def _restored(self, task: Task, patch: str) -> SuiteRun | tuple[str, tuple[str, ...]]:
        """An artifact that is a patch, made anew from the tree that it leads to once tests and settings are the task's again, and
        what was restored; or why that failed."""
        sandbox = await self.pool.acquire(task.sandbox(self.limits, self._mounts(task)))
        try:
            placed = await self._apply(sandbox, task, patch)
            if isinstance(placed, SuiteRun):
                return placed
            base = BASE if task.repository.is_dir() else COPY
            return await difference(sandbox, base, task.workdir, self.timeout_s), placed
        finally:
            await sandbox.close()

    async def _apply(self, sandbox: Sandbox, task: Task, patch: str) -> SuiteRun | tuple[str, ...]:
        """What was restored once the patch was in place, or why that failed."""
        here = task.repository.is_dir()
        try:
            if not here:
                await copy_of_base(sandbox, task.workdir, self.timeout_s)
            if (refused := await self._patch(sandbox, patch)) is not None:
                return refused
            return await restore(sandbox, BASE if here else COPY, task, self.timeout_s)
        except NotHere as error:
            return SuiteRun(fault=str(error), patch_refused=True)
        except NoRestore as error:
            return SuiteRun(problem=str(error))

    async def _patch(self, sandbox: Sandbox, patch: str) -> SuiteRun | None:
        """None where it applies."""
        data = patch.encode(errors="surrogateescape")
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        result = await sandbox.exec(command, timeout_s=self.timeout_s, stdin=data, env=GIT_ENVIRONMENT)
        if result.outcome == "exited" and result.exit_code in (126, 127):
            return SuiteRun(fault="git does not start in the sandbox; install it", patch_refused=True)
        if result.outcome == "exited" and result.exit_code == 0:
            return None
        return SuiteRun(problem=f"the patch does not apply: {ending(result)}\n{_text(result)[:1000]}", patch_refused=True)

    async def _test(self, sandbox: Sandbox, task: Task, shuffle: int | None) -> SuiteRun:
        command = ["sh", "-c", _RUN, "sh", REPORTS, f"{TESTS}/test.sh"]
        variables = {**task.environment, **task.verifier_environment}
        if shuffle is not None:
            variables[SHUFFLE] = str(shuffle)
        timeout_s = min(self.timeout_s, task.verifier_timeout_s)
        result = await sandbox.exec(command, timeout_s=timeout_s, env=variables, output_limit=LOG_BYTES)
        output = _text(result)
        if result.outcome != "exited" or result.exit_code >= 128:
            return SuiteRun(output=output, problem=f"the tests were cut short: {ending(result)}")
        try:
            report = await read_report(sandbox, task, (result.stdout + result.stderr).decode(errors="replace"))
        except ReportError as error:
            return SuiteRun(output=output, problem=f"no usable report ({ending(result)}): {error}")
        suspicion = suspect(report, task, result.exit_code, result.seconds)
        return SuiteRun(report, output, suspicion=suspicion)


def _passes(task: Task, report: Report) -> bool:
    if not task.listed:
        return report.reward is not None and report.reward >= 1
    return all(report.tests.get(name) == "passed" for name in task.listed)


def _both(first: SuiteRun, second: SuiteRun) -> SuiteRun:
    """Of each test the worse status; one that a run does not report is missing."""
    if second.problem is not None:
        return replace(first, problem=f"doubted, and run again: {second.problem}", fault=second.fault)
    one, other = first.report, second.report
    tests = {name: worse(status, other.tests[name]) for name, status in one.tests.items() if name in other.tests}
    rewards = [reward for reward in (one.reward, other.reward) if reward is not None]
    changed = [name for name in one.tests if one.tests[name] != other.tests.get(name, "missing")]
    doubts = first.suspicion.doubts + ((f"{len(changed)} tests came out differently in another order",) if changed else ())
    proofs = tuple(dict.fromkeys(first.suspicion.proofs + second.suspicion.proofs))
    report = replace(one, tests=tests, reward=min(rewards) if rewards else None)
    return replace(first, report=report, suspicion=Suspicion(proofs, doubts))


def ending(result: ExecResult) -> str:
    return f"exit code {result.exit_code}" if result.outcome == "exited" else result.outcome.replace("_", " ")


def _text(result: ExecResult) -> str:
    return (result.stdout + result.stderr)[-OUTPUT_CHARACTERS:].decode(errors="replace")
