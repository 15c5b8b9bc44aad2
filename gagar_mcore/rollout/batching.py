"""From groups to the batch of one step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gagar_mcore.credit import Aggregation, aggregation_weights
from gagar_mcore.records.batch import OPTIONAL, Batch, pack, trained_segments, write_columns
from gagar_mcore.records.experts import UNKNOWN, open_experts
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.types import Trajectory
from gagar_mcore.rollout.group import FinishedGroup


def build_batch(groups: Sequence[FinishedGroup], aggregation: Aggregation) -> tuple[Batch, list[Trajectory]]:
    """The batch, but for its `experts`, of the valid trajectories of `groups`, and these, in order; the prompts of `prompt-mean`
    are the groups. A trajectory weighs as much in several segments as in one."""
    members = [
        (t, g.group.credit.advantages[t.id], g.group.id)
        for g in groups
        for t in g.trajectories
        if t.id in g.group.credit.advantages and t.generated_tokens
    ]
    trajectories = [t for t, _, _ in members]
    weights = aggregation_weights([t.generated_tokens for t in trajectories], [group for _, _, group in members], aggregation)
    return pack(trajectories, [advantage for _, advantage, _ in members], weights), trajectories


def fill_batch(
    directory: Path, layout: RunLayout, groups: Sequence[FinishedGroup], aggregation: Aggregation, step: int, next_position: int
) -> dict[str, Any]:
    """Write the columns of a step's batch and return its metadata (see `publish_directory`). Raises RecordError where recorded
    experts are missing or damaged."""
    batch, trajectories = build_batch(groups, aggregation)
    write_columns(batch, directory)
    write_experts(directory / f"{OPTIONAL}.npy", layout, step, trajectories)
    owners = [t.id for t in trajectories for _ in trained_segments(t)]
    return {"step": step, "trajectory_ids": owners, "next_position": next_position, "prompts": len(groups)}


def write_experts(path: Path, layout: RunLayout, step: int, trajectories: Sequence[Trajectory]) -> None:
    """Write the batch's column of recorded experts from the trajectories' files, one at a time; nothing where there are none."""
    files = {t.id: (layout.experts(step, t.id), t.experts) for t in trajectories if t.experts is not None}
    if not files:
        return
    shape = open_experts(*next(iter(files.values()))).shape[1:]
    tokens = sum(end - start for t in trajectories for start, end in trained_segments(t))
    column = np.lib.format.open_memmap(path, "w+", np.int16, (tokens, *shape))
    written = 0
    for trajectory in trajectories:
        experts = open_experts(*files[trajectory.id]) if trajectory.id in files else column[:0]
        for start, end in trained_segments(trajectory):
            rows = column[written : (written := written + end - start)]
            known = experts[start:end]
            rows[: len(known)] = known
            rows[len(known) :] = UNKNOWN
    column.flush()
