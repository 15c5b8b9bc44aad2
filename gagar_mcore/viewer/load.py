"""Reading a run directory in whatever state it is: what is missing or damaged is counted, never fatal."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import RecordError, read_json
from gagar_mcore.records.types import Group, Trajectory
from gagar_mcore.tracking.metrics import Metrics, scan_metrics

Record = TypeVar("Record")
INSTRUCTION_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group with those of its trajectories that could be read, in the group's order."""

    group: Group
    trajectories: list[Trajectory]
    instruction: str | None


@dataclass(slots=True)
class RunReader:
    """Reads one run; `damaged` counts by kind what could not be read."""

    layout: RunLayout
    damaged: Counter[str] = field(default_factory=Counter)

    def recipe(self) -> Recipe | None:
        try:
            return load_recipe(str(self.layout.recipe))
        except (RecipeError, OSError, ValueError):
            self.damaged["recipe"] += 1
            return None

    def metrics(self) -> Mapping[int, Metrics]:
        scan = scan_metrics(self.layout.metrics)
        self.damaged.update({"metrics line": scan.damaged} if scan.damaged else {})
        return scan.steps

    def group_paths(self) -> dict[int, list[Path]]:
        """Step to its group records, steps ascending."""
        paths: dict[int, list[Path]] = {}
        for path in sorted((self.layout.root / "steps").glob("*/groups/*.json")):
            step = path.parent.parent.name
            if step.isdigit() and not path.name.startswith("."):
                paths.setdefault(int(step), []).append(path)
        return paths

    def group(self, path: Path) -> Group | None:
        return self._read(path, Group, "group")

    def with_trajectories(self, group: Group) -> GroupRecord:
        paths = [self.layout.trajectory(group.step, i) for i in group.trajectory_ids]
        found = [self._read(path, Trajectory, "trajectory") for path in paths]
        return GroupRecord(group, [t for t in found if t], self._instruction(group))

    def _instruction(self, group: Group) -> str | None:
        """What the task asks: from the grader's workspace, else from the run's own tasks."""
        task = Path(group.task_id).name
        paths = (
            self.layout.workspace(group.step, group.id) / "task.md",
            self.layout.root / "tasks" / "train" / task / "instruction.md",
        )
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return None
        with open(path, errors="surrogateescape") as file:
            return file.read(INSTRUCTION_CHARACTERS)

    def _read(self, path: Path, kind: type[Record], name: str) -> Record | None:
        try:
            data: Any = read_json(path)
            return from_plain(kind, data)
        except (RecordError, ValidationError, OSError, ValueError):
            self.damaged[name] += 1
            return None
