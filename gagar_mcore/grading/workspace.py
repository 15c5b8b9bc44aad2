"""The shared workspace of one group, as graders see it: in memory, and as a directory for those that read files.

    task.md                        the task as the policy was given it
    repository/                    its base commit, copied within bounds; symbolic links are left out
    trajectories/ID/summary.md     one line a turn
    trajectories/ID/turns.json     every turn
    trajectories/ID/patch.diff     the patch as submitted
    trajectories/ID/tests.txt      result of every test, and the output of the run
    manifest.json                  what is there, and what was left out

The task's solution and tests never enter it. All file names are this program's, but those below `repository/`.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gagar_mcore.grading.repository import copy_repository
from gagar_mcore.grading.summary import summarize
from gagar_mcore.grading.text import bounded
from gagar_mcore.records.types import Trajectory, Turn
from gagar_mcore.tasks.task import Task

PATCH_CHARACTERS = 1 << 20
TURN_CHARACTERS = 1 << 15
TURNS_CHARACTERS = 1 << 22
OUTPUT_CHARACTERS = 1 << 16

_ID = re.compile(r"\w[\w.-]{0,120}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One group. `trajectories`: the valid ones, in member order. `files`: relative paths of what `repository/` holds."""

    path: Path
    group_id: str
    task_id: str
    instruction: str
    files: tuple[str, ...]
    trajectories: tuple[Trajectory, ...]

    @property
    def passing(self) -> tuple[Trajectory, ...]:
        return tuple(t for t in self.trajectories if t.passed)

    def base_text(self, name: str) -> str | None:
        """A file of the repository, None where there is none. Bytes that are not UTF-8 become surrogate escapes."""
        if name not in self.files:
            return None
        return (self.path / "repository" / name).read_bytes().decode(errors="surrogateescape")


def write_workspace(path: Path, group_id: str, task: Task, trajectories: Sequence[Trajectory]) -> Workspace:
    """Write the workspace to `path`, in the place of an earlier one; it appears whole. Raises OSError, and ValueError for an
    id that is no plain file name."""
    valid = tuple(t for t in trajectories if t.valid)
    for trajectory in valid:
        if not _ID.fullmatch(trajectory.id):
            raise ValueError(f"trajectory id {trajectory.id!r} cannot name a directory: use letters, digits, '.', '_' and '-'")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _write(temporary / "task.md", task.instruction)
        repository = copy_repository(task.repository, temporary / "repository")
        contents = {t.id: _write_trajectory(temporary / "trajectories" / t.id, t) for t in valid}
        manifest = {"group": group_id, "task": task.id, "repository": asdict(repository), "trajectories": contents}
        _write(temporary / "manifest.json", json.dumps(manifest, indent=1))
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Workspace(path, group_id, task.id, task.instruction, repository.files, valid)


def _write_trajectory(folder: Path, trajectory: Trajectory) -> dict[str, Any]:
    """Write the files of one trajectory; its entry in the manifest."""
    folder.mkdir(parents=True)
    turns = json.dumps([_plain(turn) for turn in trajectory.turns], indent=1)
    texts = {
        "summary.md": (summarize(trajectory), TURNS_CHARACTERS),
        "turns.json": (turns, TURNS_CHARACTERS),
        "patch.diff": (trajectory.patch, PATCH_CHARACTERS),
        "tests.txt": (_test_report(trajectory), OUTPUT_CHARACTERS),
    }
    for name, (text, limit) in texts.items():
        _write(folder / name, bounded(text, limit))
    cut = {name: len(text) - limit for name, (text, limit) in texts.items() if len(text) > limit}
    return {"passed": trajectory.passed, "end_reason": trajectory.end_reason, "turns": len(trajectory.turns), "left_out": cut}


def _plain(turn: Turn) -> dict[str, Any]:
    cut = {name: bounded(getattr(turn, name), TURN_CHARACTERS) for name in ("action", "observation")}
    return asdict(turn) | cut


def _test_report(trajectory: Trajectory) -> str:
    if trajectory.verification is None:
        return "not verified\n"
    statuses = "".join(f"{json.dumps(name)}: {status}\n" for name, status in trajectory.verification.tests.items())
    return f"{statuses}\n{trajectory.verification.output}"


def _write(path: Path, text: str) -> None:
    try:
        data = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        data = text.encode(errors="backslashreplace")
    path.write_bytes(data)
