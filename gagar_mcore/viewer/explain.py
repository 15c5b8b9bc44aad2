"""`gagar explain`: how one trajectory of a run came to its advantage."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gagar_mcore.config.load import load_recipe
from gagar_mcore.credit import Explanation, explain
from gagar_mcore.naming import some_of
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import RecordError, read_json
from gagar_mcore.records.types import Group, Trajectory
from gagar_mcore.tracking.text import visible

Record = TypeVar("Record", Group, Trajectory)
SIGNS = {"is": "=", "plus": "+", "minus": "-", "times": "x"}
NAMED = 8
AGREEMENT = 1e-9  # of the largest in the group


def explain_run(run: Path, prefix: str, as_json: bool = False) -> str:
    """The explanation of the trajectory whose id begins with `prefix` (or is it), as text or as JSON.

    Recomputed from the run's records with its recipe. Raises FileNotFoundError where `run` is no run directory, and RecordError
    where no or several trajectories fit, the group is not finished, a record is damaged, or the recomputation gives another
    advantage than the record."""
    layout = RunLayout(run)
    if not layout.recipe.is_file():
        raise FileNotFoundError(f"{run}: no run directory, it has no {layout.recipe.name}")
    path = _find(layout, prefix)
    trajectory = _read(path, Trajectory)
    group_path = layout.group(int(path.parent.parent.name), trajectory.group_id)
    if not group_path.is_file():
        raise RecordError(f"{trajectory.id}: its group is not finished, {group_path} is not there yet")
    group = _read(group_path, Group)
    explanation = _explain(layout, group, trajectory.id)
    return _as_json(explanation, group) if as_json else _as_text(explanation, group)


def _find(layout: RunLayout, prefix: str) -> Path:
    """The record of the one trajectory that is meant."""
    paths = sorted(p for p in layout.root.glob("steps/*/trajectories/*.json") if not p.name.startswith("."))
    fitting = [p for p in paths if p.stem.startswith(prefix)]
    exact = [p for p in fitting if p.stem == prefix]
    if len(found := exact or fitting) == 1:
        return found[0]
    if not found:
        raise RecordError(f"{layout.root}: no trajectory {prefix!r}; {_what_there_is(layout, paths)}")
    listed = some_of([p.stem for p in found], NAMED)
    raise RecordError(f"{layout.root}: {len(found)} trajectories begin with {prefix!r}, give more of the id: {listed}")


def _what_there_is(layout: RunLayout, paths: list[Path]) -> str:
    gone = sum(not (step / "trajectories").is_dir() for step in (layout.root / "steps").glob("*") if (step / "groups").is_dir())
    deleted = f"; those of {gone} steps are deleted (retention.steps)" if gone else ""
    there = f"{len(paths)} are there, {paths[0].stem} to {paths[-1].stem}" if paths else "none are there"
    return there + deleted


def _read(path: Path, kind: type[Record]) -> Record:
    try:
        return from_plain(kind, read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error


def _explain(layout: RunLayout, group: Group, trajectory_id: str) -> Explanation:
    members = [_read(layout.trajectory(group.step, id), Trajectory) for id in group.trajectory_ids]
    params = load_recipe(str(layout.recipe)).method.params()
    explanation = explain(members, group.verdict, params, trajectory_id, group.credit.fallback)
    recorded, made = group.credit.advantages.get(trajectory_id), explanation.advantage
    if (recorded is None) != (made is None) or abs((recorded or 0.0) - (made or 0.0)) > AGREEMENT * _largest(group):
        raise RecordError(
            f"{trajectory_id}: the record says advantage {recorded}, but the method in {layout.recipe} gives {made}; "
            "the group was credited by another recipe or version"
        )
    return explanation


def _largest(group: Group) -> float:
    return max(map(abs, group.credit.advantages.values()), default=0.0)


def _as_json(explanation: Explanation, group: Group) -> str:
    place = {"step": group.step, "group_id": group.id, "task_id": group.task_id}
    return json.dumps(place | {"sentence": explanation.sentence} | asdict(explanation), indent=2, allow_nan=False)


def _as_text(explanation: Explanation, group: Group) -> str:
    rows = [f"  {s.name:15} {SIGNS[s.operation]} {s.operand:<12.6g} {s.value:+.6g}" for s in explanation.steps]
    head = f"Step {group.step}, group {group.id}, task {group.task_id}, method {explanation.method}"
    return visible("\n".join([head, explanation.sentence, *rows]))
