"""Tasks from real code: bugs seeded in a package that some of its own tests catch, and not all."""

import shutil
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from gagar_mcore.randomness import python_rng
from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.tasks.check import run_problem
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.package.fetch import Package, fetch
from gagar_mcore.tasks.package.seed import Seed, draw_seed
from gagar_mcore.tasks.package.write import ENVIRONMENT, Outcome, OwnTests, write_outcome, write_pristine, write_seeded
from gagar_mcore.tasks.task import Grading, Task, TaskError
from gagar_mcore.verify.report import Report
from gagar_mcore.verify.verifier import SuiteRun, Verifier
from gagar_sandbox.types import Limits, SandboxPool

LIMITS = Limits(memory_mb=2048, processes=256, file_size_mb=64, disk_mb=512)
RUN_S = 300.0
START_S, HEADROOM = 20.0, 10.0  # a bug may make the tests take so much longer
ATTEMPTS = 30  # for each task
FEWEST_TESTS = 5
MOST_FAILING = 0.25  # of all tests: a bug that breaks more is no puzzle


@dataclass(frozen=True, slots=True)
class MadeFromPackage:
    """`thrown`: bugs that were not used, by why."""

    tasks: list[Task]
    tests: int
    thrown: Counter[str]


async def make_from_package(requirement: str, count: int, seed: int, directory: Path, pool: SandboxPool) -> MadeFromPackage:
    """Write `count` verified tasks below `directory`, which must be new or empty. What each draws depends on `seed` and its
    number; which of two tasks that draw the same bug keeps it does not. Raises TaskError where the package cannot be used or too
    few bugs are caught, SandboxLost, SandboxUnavailable."""
    work = directory / ".making"
    work.mkdir(parents=True)
    try:
        package = fetch(requirement, work / "source", directory / ENVIRONMENT / "site")
        return await _make(package, count, seed, directory, work, Verifier(pool, LIMITS, RUN_S))
    finally:
        shutil.rmtree(work)


async def _make(package: Package, count: int, seed: int, directory: Path, work: Path, verifier: Verifier) -> MadeFromPackage:
    pristine = directory / f"{_slug(package)}-pristine"
    write_pristine(package, pristine, f"{sys.version_info.major}.{sys.version_info.minor}", RUN_S)
    try:
        own = await _own_tests(pristine, verifier)
        rng = python_rng(seed, "package", package.name)
        patient = replace(verifier, timeout_s=min(RUN_S, START_S + HEADROOM * sum(own.inventory.values())))
        maker = _Maker(package, pristine, directory, own, patient, rng, Counter(), set())
        tasks = await gather_all(*(maker.task(index) for index in range(count)))
    finally:
        shutil.rmtree(pristine)
    return MadeFromPackage(list(tasks), len(own.passing), maker.thrown)


async def _own_tests(pristine: Path, verifier: Verifier) -> OwnTests:
    """Of the package as it is, in two runs of two orders. Raises TaskError."""
    task = _unlisted(pristine)
    first, second = await verifier.run_tests(task, ""), await verifier.run_tests(task, "", shuffle=1)
    for run in (first, second):
        if trouble := run.fault or run.problem or ", ".join(run.report.evidence):
            raise TaskError(f"the package's own tests cannot be used: {trouble}; {' '.join(run.output[-500:].split())}")
    passing = [name for name in first.report.tests if _passed(first, name) and _passed(second, name)]
    if len(passing) < FEWEST_TESTS:
        raise TaskError(f"only {len(passing)} of the package's own tests pass here; name another package. {first.output[-500:]}")
    steady = set(first.report.tests) & set(second.report.tests)
    inventory = {name: first.report.seconds.get(name, 0.0) for name in sorted(steady)}
    others = (set(first.report.tests) | set(second.report.tests)) - steady
    reached = sorted({*first.report.reached, *second.report.reached})
    return OwnTests(inventory, passing, sorted({name.partition("[")[0] for name in others}), reached)


def _unlisted(root: Path) -> Task:
    """A task whose tests report, and of which none is listed yet."""
    return replace(load_task(root), grading=Grading())


def _passed(run: SuiteRun, name: str) -> bool:
    return run.report.tests.get(name) == "passed"


@dataclass(slots=True)
class _Maker:
    package: Package
    pristine: Path
    directory: Path
    own: OwnTests
    verifier: Verifier
    rng: Random
    thrown: Counter[str]
    used: set[str]

    async def task(self, index: int) -> Task:
        rng = Random(f"{self.rng.random()}-{index}")
        root = self.directory / f"{_slug(self.package)}-{index:03d}"
        for _ in range(ATTEMPTS):
            drawn = self._draw(rng)
            if drawn is None:
                continue
            file, bug = drawn
            write_seeded(self.package, self.pristine, root, file, bug)
            reason = await self._finish(root, bug)
            if reason is None:
                return load_task(root)
            self.thrown[reason] += 1
            shutil.rmtree(root)
        raise TaskError(f"{self.package.name}: no usable bug in {ATTEMPTS} draws; thrown away: {dict(self.thrown)}")

    def _draw(self, rng: Random) -> tuple[str, Seed] | None:
        file = rng.choice(self.package.modules)
        text = (self.package.root / file).read_text(encoding="utf-8")
        bug = draw_seed(text, rng) if text.endswith("\n") and "\r" not in text else None
        if bug is None or bug.text in self.used:
            return None
        self.used.add(bug.text)
        return file, bug

    async def _finish(self, root: Path, bug: Seed) -> str | None:
        """Write what the tests say of the bug; why it is of no use, where it is."""
        run = await self.verifier.run_tests(replace(_unlisted(root), reached=tuple(self.own.reached)), "")
        if run.fault or run.problem or run.report.evidence:
            return "the tests do not run"
        outcome = self._outcome(run.report)
        if not outcome.failing:
            return "no test fails"
        if len(outcome.failing) > MOST_FAILING * len(self.own.passing):
            return "too many tests fail"
        write_outcome(self.package, root, outcome, self.own, bug)
        return "the repair is not clear" if await run_problem(load_task(root), self.verifier, run) else None

    def _outcome(self, report: Report) -> Outcome:
        failing = {name: report.messages.get(name, "") for name in self.own.passing if report.tests.get(name) != "passed"}
        return Outcome(failing, [name for name in self.own.passing if name not in failing])


def _slug(package: Package) -> str:
    return f"{package.name}-{package.version}".lower().replace("_", "-")
