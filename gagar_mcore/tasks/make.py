"""Generated tasks on disk, each verified in a sandbox before it counts."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.tasks.check import run_problem
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task, TaskError
from gagar_mcore.tasks.write import write_task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox.types import Limits, SandboxPool

MAX_ATTEMPTS = 3
VERIFIER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class MadeTasks:
    """`redrawn` counts the draws that were thrown away because their tests did not tell the bug from the solution."""

    tasks: list[Task]
    redrawn: int


async def make_tasks(
    seed: int,
    count: int,
    directory: Path,
    pool: SandboxPool,
    *,
    heldout: bool = False,
    heldout_templates: Collection[str] = (),
) -> MadeTasks:
    """Write tasks 0 to `count - 1` of `seed` below `directory`, see `generate_task`. Tasks of other seeds may lie there.
    Raises TaskError where a task fails `MAX_ATTEMPTS` draws, SandboxLost, SandboxUnavailable."""
    verifier = Verifier(pool, Limits(), VERIFIER_TIMEOUT_S)

    async def make(index: int) -> tuple[Task, int]:
        problem = None
        for attempt in range(MAX_ATTEMPTS):
            generated = generate_task(seed, index, heldout, heldout_templates, attempt)
            task = load_task(write_task(generated, directory))
            if (problem := await run_problem(task, verifier)) is None:
                return task, attempt
        raise TaskError(f"{directory}: task {index} of seed {seed} failed {MAX_ATTEMPTS} checks, the last one {problem}")

    made = await gather_all(*(make(index) for index in range(count)))
    return MadeTasks([task for task, _ in made], sum(attempts for _, attempts in made))
