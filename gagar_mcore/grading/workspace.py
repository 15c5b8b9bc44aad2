"""The shared workspace of one group, as graders see it: in memory, and as a directory for those that read files.

    task.md                        the task as the policy was given it
    repository/                    its base commit, copied within bounds, where it is at hand; symbolic links are left out
    trajectories/ID/summary.md     one line a turn
    trajectories/ID/turns/         every turn, in pages of `PAGE_TURNS`: 0000.json, 0001.json, ...
    trajectories/ID/patch.diff     the patch as submitted
    trajectories/ID/applied/       the files that it changes, as it leaves them
    trajectories/ID/tests.txt      result of every test, and the output of the run
    manifest.json                  what is there, and what was left out
    scratch/                       for graders: the checks that they ran. Everything else is read-only

The task's solution and tests never enter it. All file names are this program's, but those below `repository/` and `applied/`.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gagar_mcore.grading.applied import applied, fit_for_disk
from gagar_mcore.grading.repository import RepositoryCopy, copy_repository
from gagar_mcore.grading.summary import summarize
from gagar_mcore.grading.text import bounded
from gagar_mcore.records.types import Trajectory, Turn
from gagar_mcore.tasks.task import Task

PATCH_CHARACTERS = 1 << 20
APPLIED_CHARACTERS = 1 << 22
TURN_CHARACTERS = 1 << 15
TURNS_CHARACTERS = 1 << 22
OUTPUT_CHARACTERS = 1 << 16
PAGE_TURNS = 20

_ID = re.compile(r"\w[\w.-]{0,120}", re.ASCII)


BaseText = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Workspace:
    """One group. `trajectories`: the valid ones, in member order. `files`: relative paths of what `repository/` holds. `task` is
    for checks to run on; nothing but its instruction is shown."""

    path: Path
    group_id: str
    task: Task
    files: tuple[str, ...]
    trajectories: tuple[Trajectory, ...]

    @property
    def instruction(self) -> str:
        return self.task.instruction

    @property
    def passing(self) -> tuple[Trajectory, ...]:
        return tuple(t for t in self.trajectories if t.passed)

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def base_text(self, name: str) -> str | None:
        """A file of the repository, None where there is none. Bytes that are not UTF-8 become surrogate escapes."""
        return _base_text(self.path / "repository", self.files, name)

    def keep_check(self, trajectory_id: str, record: dict[str, Any]) -> int:
        """Write what a check on a trajectory found to the scratch area; the number that cites it."""
        folder = self.scratch / "checks"
        folder.mkdir(parents=True, exist_ok=True)
        number = len(self.checks())
        _write(folder / f"{number:04d}.json", json.dumps({"trajectory": trajectory_id} | record))
        return number

    def checks(self) -> dict[int, str]:
        """The trajectory that each check was run on, by the check's number."""
        paths = sorted((self.scratch / "checks").glob("*.json"))
        return {int(path.stem): json.loads(path.read_bytes())["trajectory"] for path in paths}


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
        repository = _write_all(temporary, group_id, task, valid)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Workspace(path, group_id, task, repository.files, valid)


def _write_all(path: Path, group_id: str, task: Task, valid: Sequence[Trajectory]) -> RepositoryCopy:
    _write(path / "task.md", task.instruction)
    target = path / "repository"
    repository = copy_repository(task.repository, target) if task.repository.exists() else RepositoryCopy((), 0)

    def base_text(name: str) -> str | None:
        return _base_text(target, repository.files, name)

    contents = {t.id: _write_trajectory(path / "trajectories" / t.id, t, base_text) for t in valid}
    manifest = {"group": group_id, "task": task.id, "repository": asdict(repository), "trajectories": contents}
    _write(path / "manifest.json", json.dumps(manifest, indent=1))
    for file in path.rglob("*"):
        if not file.is_dir():
            file.chmod(0o444)
    (path / "scratch").mkdir()
    return repository


def _base_text(folder: Path, files: Sequence[str], name: str) -> str | None:
    return (folder / name).read_bytes().decode(errors="surrogateescape") if name in files else None


def _write_trajectory(folder: Path, trajectory: Trajectory, base_text: BaseText) -> dict[str, Any]:
    """Write the files of one trajectory; its entry in the manifest."""
    folder.mkdir(parents=True)
    texts = {
        "summary.md": (summarize(trajectory), TURNS_CHARACTERS),
        "patch.diff": (trajectory.patch, PATCH_CHARACTERS),
        "tests.txt": (results_of(trajectory), OUTPUT_CHARACTERS),
    }
    for name, (text, limit) in texts.items():
        _write(folder / name, bounded(text, limit))
    left_out: dict[str, Any] = {name: len(text) - limit for name, (text, limit) in texts.items() if len(text) > limit}
    left_out |= {"turns": turns} if (turns := _write_pages(folder / "turns", trajectory.turns)) else {}
    left_out |= {"applied": paths} if (paths := _write_applied(folder / "applied", trajectory.patch, base_text)) else {}
    return {
        "passed": trajectory.passed,
        "end_reason": trajectory.end_reason,
        "turns": len(trajectory.turns),
        "left_out": left_out,
    }


def _write_pages(folder: Path, turns: Sequence[Turn]) -> int:
    """The number of turns that no longer fit."""
    folder.mkdir()
    written = 0
    for page, start in enumerate(range(0, len(turns), PAGE_TURNS)):
        text = json.dumps([plain_turn(turn) for turn in turns[start : start + PAGE_TURNS]], indent=1)
        written += len(text)
        if written > TURNS_CHARACTERS:
            return len(turns) - start
        _write(folder / f"{page:04d}.json", text)
    return 0


def _write_applied(folder: Path, patch: str, base_text: BaseText) -> list[str]:
    """The changed files that are not written: those whose text or name does not allow it, and those beyond the bound."""
    folder.mkdir()
    after = applied(patch, base_text)
    left_out, written = [*after.unknown], 0
    for path, text in after.files.items():
        written += len(text or "")
        if written > APPLIED_CHARACTERS or not fit_for_disk(path) or not _write_below(folder, path, text):
            left_out.append(path)
    return left_out


def _write_below(folder: Path, path: str, text: str | None) -> bool:
    """False where the name of another file of the patch is in the way. A deleted file is left away."""
    if text is None:
        return True
    try:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        _write(folder / path, text)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return False
    return True


def plain_turn(turn: Turn) -> dict[str, Any]:
    """As data, its texts bounded."""
    cut = {name: bounded(getattr(turn, name), TURN_CHARACTERS) for name in ("action", "observation")}
    return asdict(turn) | cut


def results_of(trajectory: Trajectory) -> str:
    """One line a test, then what the run printed."""
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
