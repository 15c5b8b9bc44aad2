"""Task directories in the Harbor layout, read and validated."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.tasks.task import Task, TaskError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NodeId = Annotated[str, Field(min_length=1, max_length=10_000)]
_Seconds = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    """Fields that are not used here are allowed: the layout has many more."""

    model_config = ConfigDict(extra="ignore")


class _Named(_Part):
    name: Annotated[str, Field(min_length=1)]


class _Metadata(_Part):
    model_config = ConfigDict(extra="allow")
    task_id: str | None = None
    language: str = "python"


class _Timed(_Part):
    timeout_sec: _Seconds


class _Environment(_Part):
    memory_mb: Annotated[int, Field(gt=0)] = 8192


class _TaskToml(_Part):
    schema_version: Annotated[str, Field(pattern=r"^1\.\d+$")]
    task: _Named
    metadata: _Metadata = _Metadata()
    verifier: _Timed = _Timed(timeout_sec=1800.0)
    agent: _Timed = _Timed(timeout_sec=5400.0)
    environment: _Environment = _Environment()


class _TestConfig(_Part):
    f2p_node_ids: Annotated[list[_NodeId], Field(min_length=1)]
    p2p_node_ids: list[_NodeId]


_Model = TypeVar("_Model", bound=BaseModel)


def load_task(directory: Path) -> Task:
    """Read `task.toml`, `instruction.md` and `tests/config.json`. What it takes to run the task besides these may be
    missing: see `missing_parts`. Raises TaskError."""
    toml = _read(directory / "task.toml", tomllib.loads, _TaskToml)
    config = _read(directory / "tests" / "config.json", json.loads, _TestConfig)
    instruction = _text(directory / "instruction.md").strip()
    if not instruction:
        raise TaskError(f"{directory / 'instruction.md'}: empty; write what the agent is to do")
    if doubled := _doubled(config.f2p_node_ids + config.p2p_node_ids):
        raise TaskError(f"{directory / 'tests/config.json'}: {doubled!r} is listed twice; list each test once")
    return Task(
        id=_task_id(toml, directory),
        directory=directory,
        instruction=instruction,
        repository=directory / "environment" / "app",
        tests=directory / "tests",
        fail_to_pass=tuple(config.f2p_node_ids),
        pass_to_pass=tuple(config.p2p_node_ids),
        language=toml.metadata.language,
        agent_timeout_s=toml.agent.timeout_sec,
        verifier_timeout_s=toml.verifier.timeout_sec,
        memory_mb=toml.environment.memory_mb,
        metadata=toml.metadata.model_dump(),
    )


def missing_parts(task: Task) -> list[str]:
    """What the task lacks to be run here, each with its mend; empty for a complete task."""
    missing = []
    if not task.repository.is_dir():
        missing.append("environment/app (put the repository there)")
    elif any(path.name == ".git" for path in task.repository.rglob(".git")):
        missing.append("environment/app without .git (remove it: history can reveal the solution)")
    if not (task.tests / "test.sh").is_file():
        missing.append("tests/test.sh (it runs the tests and writes /logs/verifier/report.json)")
    if not (task.directory / "solution" / "fix.patch").is_file():
        missing.append("solution/fix.patch (a patch that passes the tests)")
    return missing


def task_directories(path: Path) -> list[Path]:
    """`path` itself where it is a task, else the tasks right below it, by name. Raises TaskError where there are none."""
    if (path / "task.toml").is_file():
        return [path]
    if not path.is_dir():
        raise TaskError(f"{path}: no such directory; name a task directory or a folder of them")
    found = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not found:
        raise TaskError(f"{path}: holds no task; each task is a directory with a task.toml")
    return found


def load_tasks(path: Path, runnable: bool = True) -> list[Task]:
    """Every task of a folder, by name, or the one task that `path` is. With `runnable`, parts missing for a run are an error.
    Raises TaskError, also for two tasks of one id."""
    tasks = [load_task(directory) for directory in task_directories(path)]
    if doubled := _doubled([task.id for task in tasks]):
        raise TaskError(f"{path}: two tasks have the id {doubled!r}; change metadata.task_id of one")
    for task in tasks if runnable else []:
        if missing := missing_parts(task):
            raise TaskError(f"{task.directory}: cannot be run, missing: {'; '.join(missing)}")
    return tasks


def _task_id(toml: _TaskToml, directory: Path) -> str:
    name = toml.metadata.task_id or toml.task.name.rpartition("/")[2]
    if not _ID.fullmatch(name):
        raise TaskError(f"{directory / 'task.toml'}: metadata.task_id: {name!r} must be letters, digits, '.', '_' and '-'")
    return name


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise TaskError(f"{path}: missing; a task needs it") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text; convert it") from error


def _read(path: Path, parse: Callable[[str], Any], model: type[_Model]) -> _Model:
    try:
        return model.model_validate(parse(_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise TaskError(f"{path}: {where}: {first['msg'].lower()}, got {str(first['input'])[:80]!r}; correct it") from error
    except ValueError as error:
        raise TaskError(f"{path}: does not parse: {' '.join(str(error).split())}; correct it") from error


def _doubled(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
