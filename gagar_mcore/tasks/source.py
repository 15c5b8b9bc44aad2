"""The tasks of a run: generated once into its directory, made from a seed, or loaded."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gagar_mcore.config.tasks import SourceSection, TasksSection
from gagar_mcore.records.store import MANIFEST, publish_directory
from gagar_mcore.tasks.load import load_tasks
from gagar_mcore.tasks.make import make_tasks
from gagar_mcore.tasks.question import Problem
from gagar_mcore.tasks.question_file import load_questions
from gagar_mcore.tasks.questions import generate_question
from gagar_mcore.tasks.task import Task, TaskError
from gagar_sandbox.types import SandboxPool


async def training_tasks(section: TasksSection, directory: Path, pool: SandboxPool, epoch: int) -> dict[str, list[Problem]]:
    """The tasks to train on, by the name of their source, "" where there is no mix; `directory` keeps generated ones over
    restarts."""
    found = {name: await _training(source, directory / name, pool, epoch) for name, source in section.sources.items()}
    return {name: [replace(task, source=name) for task in tasks] for name, tasks in found.items()}


async def heldout_tasks(section: TasksSection, directory: Path, pool: SandboxPool, epoch: int) -> list[Problem]:
    """The tasks to evaluate on, of all sources: never trained on."""
    found = {name: await _heldout(source, directory / name, pool, epoch) for name, source in section.sources.items()}
    return [replace(task, source=name) for name, tasks in found.items() for task in tasks]


def check_sources(section: TasksSection, images: bool = False) -> None:
    """Raises TaskError where tasks that are loaded cannot be run, or too few are left to train on. images: sandboxes start from
    images."""
    for name, source in section.sources.items():
        if source.path is not None:
            try:
                loaded_tasks(source, images)
            except TaskError as error:
                field = f"tasks.mix.{name}.path" if name else "tasks.path"
                raise TaskError(f"{field}: {error}") from error


def every_task(section: SourceSection, images: bool = True) -> list[Problem]:
    """Of `section.path`, by id. Raises TaskError."""
    path = Path(section.path or "")
    found: Sequence[Problem] = load_questions(path) if section.source == "questions" else load_tasks(path, images=images)
    return sorted(found, key=lambda task: task.id)


def loaded_tasks(section: SourceSection, images: bool = True) -> list[Problem]:
    """Every task of `section.path`, by id. Raises TaskError, also where none is left to train on."""
    found = every_task(section, images)
    if section.heldout_count >= len(found):
        raise TaskError(
            f"{section.path}: tasks.heldout_count {section.heldout_count} leaves none of {len(found)} tasks to train on"
        )
    return found


async def _training(section: SourceSection, directory: Path, pool: SandboxPool, epoch: int) -> list[Problem]:
    if section.path is not None:
        tasks = loaded_tasks(section)
        return tasks[: len(tasks) - section.heldout_count]
    if section.source == "questions":
        return [generate_question(section.seed, index) for index in range(section.count)]
    return [*await _generated(section.seed, section.count, False, directory / "train", pool, epoch)]


async def _heldout(section: SourceSection, directory: Path, pool: SandboxPool, epoch: int) -> list[Problem]:
    if section.path is not None:
        tasks = loaded_tasks(section)
        return tasks[len(tasks) - section.heldout_count :]
    if section.source == "questions":
        return [generate_question(section.heldout_seed, index, heldout=True) for index in range(section.heldout_count)]
    return [*await _generated(section.heldout_seed, section.heldout_count, True, directory / "heldout", pool, epoch)]


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
