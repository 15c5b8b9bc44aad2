"""From groups to the batch of one step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gagar_mcore.credit import Aggregation, aggregation_weights
from gagar_mcore.records.batch import Batch, pack, write_columns
from gagar_mcore.rollout.group import FinishedGroup


def build_batch(groups: Sequence[FinishedGroup], aggregation: Aggregation) -> tuple[Batch, list[str]]:
    """The batch of the valid trajectories of `groups`, and their ids, in order; the prompts of `prompt-mean` are the groups."""
    members = [
        (t, g.group.credit.advantages[t.id], g.group.id)
        for g in groups
        for t in g.trajectories
        if t.id in g.group.credit.advantages and t.generated_tokens
    ]
    trajectories = [t for t, _, _ in members]
    weights = aggregation_weights([t.generated_tokens for t in trajectories], [group for _, _, group in members], aggregation)
    return pack(trajectories, [advantage for _, advantage, _ in members], weights), [t.id for t in trajectories]


def fill_batch(
    directory: Path, groups: Sequence[FinishedGroup], aggregation: Aggregation, step: int, next_position: int
) -> dict[str, Any]:
    """Write the columns of a step's batch and return its metadata (see `publish_directory`)."""
    batch, ids = build_batch(groups, aggregation)
    write_columns(batch, directory)
    return {"step": step, "trajectory_ids": ids, "next_position": next_position, "prompts": len(groups)}
