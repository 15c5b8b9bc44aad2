"""Task directories in the Harbor layout, read and validated."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gagar_mcore.tasks.harbor import Artifact, Environment, Networked, TaskToml, TestConfig, unknown_fields
from gagar_mcore.tasks.task import Collect, Grading, Task, TaskError

HISTORY = "environment/history.json"  # what was left of a repository's history, see tasks/history.py

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NODE_IDS = {"ctrf": "name", "junit": "classname.name", "log": "name"}

_Model = TypeVar("_Model", bound=BaseModel)


def load_task(directory: Path) -> Task:
    """Read `task.toml`, `instruction.md` and `tests/config.json`; without the last, the reward file decides. What it takes to
    run the task besides these may be missing: see `missing_parts`. Raises TaskError."""
    toml = _read(directory / "task.toml", tomllib.loads, TaskToml)
    config = _read_tests(directory / "tests" / "config.json")
    instruction = _text(directory / "instruction.md").strip()
    if not instruction:
        raise TaskError(f"{directory / 'instruction.md'}: empty; write what the agent is to do")
    where_tests_run = toml.verifier.environment or toml.environment
    artifacts = [artifact.source if isinstance(artifact, Artifact) else artifact for artifact in toml.artifacts]
    return Task(
        id=_task_id(toml, directory),
        directory=directory,
        instruction=instruction,
        repository=directory / "environment" / "app",
        tests=directory / "tests",
        fail_to_pass=tuple(config.f2p_node_ids) if config else (),
        pass_to_pass=tuple(config.p2p_node_ids) if config else (),
        workdir=toml.environment.workdir or "/app",
        language=toml.metadata.language,
        agent_timeout_s=toml.agent.timeout_sec,
        verifier_timeout_s=toml.verifier.timeout_sec,
        memory_mb=where_tests_run.memory_mb or 8192,
        metadata=toml.metadata.model_dump(),
        disk_mb=where_tests_run.storage_mb or 10240,
        image=toml.environment.docker_image,
        tests_image=where_tests_run.docker_image or toml.environment.docker_image,
        base_commit=config.base_commit if config else None,
        artifact=artifacts[0] if len(artifacts) == 1 else None,
        collect=tuple(Collect(collect.command, collect.timeout_sec) for collect in toml.verifier.collect),
        grading=_grading(config),
        inventory=config.inventory if config else {},
        unsteady=tuple(config.unsteady) if config else (),
        reached=tuple(config.reached) if config else (),
        guarded=tuple(config.guarded) if config else (),
        environment=toml.environment.env,
        verifier_environment=where_tests_run.env | toml.verifier.env,
        warnings=tuple(_warnings(toml, config)),
        unsupported=tuple(_unsupported(toml, artifacts)),
    )


def missing_parts(task: Task, images: bool = False) -> list[str]:
    """What the task lacks to be run here, each with its mend; empty for a complete task. images: sandboxes start from images."""
    missing = list(task.unsupported)
    if images and task.image is not None and not task.repository.exists():
        pass
    elif not task.repository.is_dir():
        image = f"; its image {task.image} has it, and sandboxes here start from no image" if task.image else ""
        missing.append(f"environment/app (put the repository there{image})")
    elif (task.repository / ".git").exists() and not (task.directory / HISTORY).is_file():
        missing.append("environment/app without later history (gagar tasks clean: it can reveal the solution)")
    elif any(path.parent != task.repository for path in task.repository.rglob(".git")):
        missing.append("environment/app without inner repositories (remove their .git: history can reveal the solution)")
    if not (task.tests / "test.sh").is_file():
        missing.append(f"tests/test.sh (it runs the tests and writes {', '.join(task.grading.reports) or 'its report'})")
    if not solution_files(task):
        missing.append("solution/fix.patch (a patch that passes the tests, or solve.sh, which makes the changes)")
    return missing


def solution_files(task: Task) -> list[Path]:
    """The patch that solves it, or the script; the first is to be used."""
    folder = task.directory / "solution"
    return [*sorted(folder.glob("*.patch")), *sorted(folder.glob("solve.sh"))]


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


def load_tasks(path: Path, runnable: bool = True, images: bool = False) -> list[Task]:
    """Every task of a folder, by name, or the one task that `path` is. With `runnable`, parts missing for a run are an error,
    see `missing_parts`. Raises TaskError, also for two tasks of one id."""
    tasks = [load_task(directory) for directory in task_directories(path)]
    if doubled := _doubled([task.id for task in tasks]):
        raise TaskError(f"{path}: two tasks have the id {doubled!r}; change metadata.task_id of one")
    for task in tasks if runnable else []:
        if missing := missing_parts(task, images):
            raise TaskError(f"{task.directory}: cannot be run, missing: {'; '.join(missing)}")
    return tasks


def _task_id(toml: TaskToml, directory: Path) -> str:
    name = toml.metadata.task_id or (toml.task.name.rpartition("/")[2] if toml.task else directory.resolve().name)
    if not _ID.fullmatch(name):
        raise TaskError(f"{directory / 'task.toml'}: metadata.task_id: {name!r} must be letters, digits, '.', '_' and '-'")
    return name


def _grading(config: TestConfig | None) -> Grading:
    if config is None:
        return Grading("reward", ())
    if config.grade is None:
        return Grading()
    grade = config.grade
    return Grading(grade.format, tuple(grade.reports), grade.node_id or _NODE_IDS[grade.format], grade.parser)


def _warnings(toml: TaskToml, config: TestConfig | None) -> Iterator[str]:
    for name in unknown_fields(toml):
        yield f"task.toml: {name}: unknown, not heeded"
    if config is None:
        yield "tests/config.json: none, so the reward file alone decides"
    else:
        for name in unknown_fields(config):
            yield f"tests/config.json: {name}: unknown, not heeded"
    parts: dict[str, Networked | None] = {
        "agent": toml.agent,
        "verifier": toml.verifier,
        "environment": toml.environment,
        "verifier.environment": toml.verifier.environment,
    }
    for name, part in parts.items():
        if part and part.network_mode in ("public", "allowlist"):
            yield f"task.toml: {name}.network_mode: {part.network_mode}, and sandboxes here have no network"
    if toml.environment.allow_internet:
        yield "task.toml: environment.allow_internet: sandboxes here have no network"
    for name, given in _not_given(toml):
        if given:
            yield f"task.toml: {name}: not heeded"
    for name, value in {**toml.environment.env, **toml.verifier.env}.items():
        if "${" in value:
            yield f"task.toml: env.{name}: names a variable of the host, which is not given to sandboxes"


def _not_given(toml: TaskToml) -> Iterator[tuple[str, object]]:
    """What sandboxes have in one way only: a user, a start, skills."""
    yield "agent.user", toml.agent.user
    yield "verifier.user", toml.verifier.user
    yield "environment.healthcheck", toml.environment.healthcheck
    yield "environment.skills_dir", toml.environment.skills_dir


def _unsupported(toml: TaskToml, artifacts: list[str]) -> Iterator[str]:
    both: dict[str, Environment | None] = {"environment": toml.environment, "verifier.environment": toml.verifier.environment}
    for name, part in both.items():
        if part and part.os == "windows":
            yield f"{name}.os of linux (windows does not run here)"
        if part and (part.gpus or part.tpu):
            yield f"{name}.gpus of 0 (sandboxes have no accelerator)"
        if part and part.mcp_servers:
            yield f"{name}.mcp_servers that is empty (no server is started for a session)"
    services = {c.service for c in toml.verifier.collect} | {a.service for a in toml.artifacts if isinstance(a, Artifact)}
    if services - {"main", None}:
        yield "one service (services beside main are not started)"
    if toml.steps:
        yield "one step (tasks of several steps are not run)"
    if len(artifacts) > 1:
        yield f"artifacts of one file ({len(artifacts)} are named; one is carried to the tests)"


def _read_tests(path: Path) -> TestConfig | None:
    if not path.exists():
        return None
    config = _read(path, json.loads, TestConfig)
    if doubled := _doubled(config.f2p_node_ids + config.p2p_node_ids):
        raise TaskError(f"{path}: {doubled!r} is listed twice; list each test once")
    if config.grade and config.grade.format == "log" and not config.grade.parser:
        raise TaskError(f"{path}: grade.parser: missing; name the parser of SWE-bench that reads what test.sh prints")
    if config.grade and config.grade.format != "log" and not config.grade.reports:
        raise TaskError(f"{path}: grade.reports: empty; name the files that test.sh writes")
    return config


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise TaskError(f"{path}: missing; a task needs it") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text; convert it") from error


def _read(path: Path, parse: Callable[[str], Any], model: type[_Model]) -> _Model:
    text = _text(path)
    try:
        return model.model_validate(parse(text))
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
