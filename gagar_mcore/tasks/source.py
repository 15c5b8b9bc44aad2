"""The tasks of a run: generated once into its directory, or loaded from Harbor directories."""

import shutil
from pathlib import Path
from typing import Any

from gagar_mcore.config.rollout import TasksSection
from gagar_mcore.records.store import MANIFEST, publish_directory
from gagar_mcore.tasks.load import load_tasks
from gagar_mcore.tasks.make import make_tasks
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import SandboxPool


async def training_and_heldout(
    section: TasksSection, directory: Path, pool: SandboxPool, epoch: int
) -> tuple[list[Task], list[Task]]:
    """Training tasks and held-back tasks; `directory` keeps generated ones over restarts.
    Of Harbor tasks the last `heldout_count` by id are held back."""
    if section.source == "generated":
        training = await _generated(section.seed, section.count, False, directory / "train", pool, epoch)
        return training, await _generated(section.heldout_seed, section.heldout_count, True, directory / "heldout", pool, epoch)
    tasks = sorted(load_tasks(Path(section.path or "")), key=lambda t: t.id)
    cut = len(tasks) - section.heldout_count
    return tasks[:cut], tasks[cut:]


async def _generated(seed: int, count: int, heldout: bool, directory: Path, pool: SandboxPool, epoch: int) -> list[Task]:
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
