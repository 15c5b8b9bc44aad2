"""`gagar grade` and `gagar audit`: groups of a run, or of any other program, graded offline."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.pools import open_pools
from gagar_mcore.controller.services import credit_params, sandbox_limits
from gagar_mcore.grading.audit import pairs, scored
from gagar_mcore.grading.audit import summary as audit_summary
from gagar_mcore.grading.offline import Graded, OfflineGrading, append, summary
from gagar_mcore.grading.recorded import GROUPS_FILE, RecordedGroup, read_groups
from gagar_mcore.grading.service import GradingService
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import read_json
from gagar_mcore.records.types import Group
from gagar_mcore.rollout.group import read_trajectories
from gagar_mcore.tasks.source import training_tasks
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import SandboxPool

BASE_RECIPE = "tiny"  # whose defaults hold where groups come without a recipe


async def grade(
    source: Path, overrides: Sequence[str], repeat: int, shuffle: bool, count: int | None, keep: Path | None, out: Path
) -> str:
    """Grade the groups of a run directory, or those in `groups.jsonl` of another, the first `count` of them, and write the
    verdicts to `out` as JSON lines; what to say of them. keep: where workspaces stay. Raises RecipeError, RecordError, TaskError,
    SandboxUnavailable, OSError."""
    recipe = _recipe(source, overrides)
    if out.exists():
        raise RecipeError(f"--out: {out} exists; name another file")
    params = credit_params(recipe)

    def done(graded: Graded) -> None:
        append(out, graded, params)
        print(f"{graded.group.id} {graded.repeat}: {graded.fallback or 'graded'}, {graded.seconds:.1f} s")

    async with _grading(recipe, repeat, shuffle, keep) as (grading, pool):
        groups = await _groups(source, recipe, pool)
        return summary(await grading.grade_all(islice(groups, count), done), params)


async def audit(run: Path, overrides: Sequence[str], against: Path | None, count: int | None) -> str:
    """Patch quality of `run` beside that of `against`, or of the later half of its groups beside that of the earlier half, over
    at most `count` tasks; what to say of it. Raises as `grade` does."""
    recipe = _recipe(run, overrides)
    params = credit_params(recipe)
    async with _grading(recipe, 1, True, None) as (grading, pool):
        new = await _groups(run, recipe, pool)
        half = len(new) // 2
        old, new = (await _groups(against, _recipe(against, overrides), pool), new) if against else (new[:half], new[half:])
        graded = await grading.grade_all(islice(pairs(old, new, recipe.seed), count), lambda graded: None)
    found = [scored(one, params) for [one] in graded]
    return audit_summary([one for one in found if one is not None], found.count(None))


def _recipe(source: Path, overrides: Sequence[str]) -> Recipe:
    """The run's own, or one whose defaults hold for groups without a recipe."""
    own = RunLayout(source).recipe
    if not own.is_file() and not (source / GROUPS_FILE).is_file():
        raise RecipeError(f"{source}: neither a run directory (recipe.yaml) nor a folder with {GROUPS_FILE}")
    recipe = load_recipe(str(own) if own.is_file() else BASE_RECIPE, overrides)
    if recipe.grading.grader == "none":
        raise RecipeError("grading.grader: none grades nothing; set static or agentic")
    return recipe


@asynccontextmanager
async def _grading(
    recipe: Recipe, repeat: int, shuffle: bool, keep: Path | None
) -> AsyncIterator[tuple[OfflineGrading, SandboxPool]]:
    """And the pool of sandboxes for what checks run."""
    async with open_pools(recipe) as pools:
        service = GradingService.from_section(recipe.grading, credit_params(recipe), pools.tests, sandbox_limits(recipe))
        with tempfile.TemporaryDirectory(prefix="gagar-grade-") as temporary:
            folder = keep or Path(temporary)
            yield OfflineGrading(service, folder, repeat, shuffle, recipe.grading.concurrency), pools.tests


async def _groups(source: Path, recipe: Recipe, pool: SandboxPool) -> list[RecordedGroup]:
    layout = RunLayout(source)
    return await recorded_groups(layout, recipe, pool) if layout.recipe.is_file() else list(read_groups(source / GROUPS_FILE))


async def recorded_groups(layout: RunLayout, recipe: Recipe, pool: SandboxPool) -> list[RecordedGroup]:
    """Of a run, those whose trajectories are still there, in the order of steps. Tasks are the run's own."""
    tasks = await training_tasks(recipe.tasks, layout.root / "tasks", pool, 0)
    known = {task.id: task for some in tasks.values() for task in some if isinstance(task, Task)}
    return [found for path in _group_files(layout) if (found := _recorded(layout, path, known)) is not None]


def _group_files(layout: RunLayout) -> Iterator[Path]:
    paths = (layout.root / "steps").glob("*/groups/*.json")
    yield from sorted(path for path in paths if not path.name.startswith("."))


def _recorded(layout: RunLayout, path: Path, tasks: dict[str, Task]) -> RecordedGroup | None:
    group = from_plain(Group, read_json(path))
    there = all(layout.trajectory(group.step, id).is_file() for id in group.trajectory_ids)
    if not there or group.task_id not in tasks:
        return None
    return RecordedGroup(group.id, tasks[group.task_id], tuple(read_trajectories(layout, group)))
