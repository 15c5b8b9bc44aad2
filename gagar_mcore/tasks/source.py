"""The tasks of a run: generated once into its directory, or loaded from Harbor directories."""

import shutil
from pathlib import Path
from typing import Any

from gagar_mcore.config.rollout import TasksSection
from gagar_mcore.records.store import MANIFEST, publish_directory
from gagar_mcore.tasks.load import load_tasks
from gagar_mcore.tasks.make import make_tasks
from gagar_mcore.tasks.task import Task, TaskError
from gagar_sandbox.types import SandboxPool


async def training_tasks(section: TasksSection, directory: Path, pool: SandboxPool, epoch: int) -> list[Task]:
    """The tasks to train on; `directory` keeps generated ones over restarts."""
    if section.source == "generated":
        return await _generated(section.seed, section.count, False, directory / "train", pool, epoch)
    tasks = harbor_tasks(section)
    return tasks[: len(tasks) - section.heldout_count]


async def heldout_tasks(section: TasksSection, directory: Path, pool: SandboxPool, epoch: int) -> list[Task]:
    """The tasks to evaluate on: never trained on. Of Harbor tasks, the last `heldout_count` by id."""
    if section.source == "generated":
        return await _generated(section.heldout_seed, section.heldout_count, True, directory / "heldout", pool, epoch)
    tasks = harbor_tasks(section)
    return tasks[len(tasks) - section.heldout_count :]


def harbor_tasks(section: TasksSection) -> list[Task]:
    """Every task below `section.path`, by id. Raises TaskError where one cannot be run or too few are left to train on."""
    tasks = sorted(load_tasks(Path(section.path or "")), key=lambda t: t.id)
    if section.heldout_count >= len(tasks):
        raise TaskError(
            f"{section.path}: tasks.heldout_count {section.heldout_count} leaves none of {len(tasks)} tasks to train on"
        )
    return tasks


async def _generated(seed: int, count: int, heldout: bool, directory: Path, pool: SandboxPool, epoch: int) -> list[Task]:
    if count == 0:
        return []
    if not (directory / MANIFEST).is_file():
        making = directory.with_name(f".{directory.name}.making.tmp")
        shutil.rmtree(making, ignore_errors=True)
        await make_tasks(seed, count, making, pool, heldout=heldout)

        def fill(target: Path) -> dict[str, Any]:
            shutil.copytree(making, target, dirs_exist_ok=True)
            return {"seed": seed, "count": count}

        publish_directory(directory, "tasks", epoch, fill)
        shutil.rmtree(making)
    return load_tasks(directory)
