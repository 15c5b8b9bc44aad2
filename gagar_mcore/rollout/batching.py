"""From groups to the batch of one step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gagar_mcore.records.batch import Batch, pack, write_columns
from gagar_mcore.rollout.group import FinishedGroup


def prompt_mean_weights(generated: Sequence[Sequence[int]]) -> list[list[float]]:
    """Aggregation weight of every sequence, per prompt: `1 / (P * sum of |o_i| over the prompt)`, where |o_i| counts the
    generated tokens of a sequence (the `mimo` loss, prompt-mean)."""
    return [[1.0 / (len(generated) * sum(counts))] * len(counts) for counts in generated]


def build_batch(groups: Sequence[FinishedGroup]) -> tuple[Batch, list[str]]:
    """The batch of the valid trajectories of `groups`, and their ids, in order."""
    members = [[t for t in g.trajectories if t.id in g.group.credit.advantages and t.generated_tokens] for g in groups]
    weights = prompt_mean_weights([[t.generated_tokens for t in trajectories] for trajectories in members])
    advantages = [g.group.credit.advantages[t.id] for g, trajectories in zip(groups, members, strict=True) for t in trajectories]
    flat = [t for trajectories in members for t in trajectories]
    return pack(flat, advantages, [w for group in weights for w in group]), [t.id for t in flat]


def fill_batch(directory: Path, groups: Sequence[FinishedGroup], step: int, next_position: int) -> dict[str, Any]:
    """Write the columns of a step's batch and return its metadata (see `publish_directory`)."""
    batch, ids = build_batch(groups)
    write_columns(batch, directory)
    return {"step": step, "trajectory_ids": ids, "next_position": next_position, "prompts": len(groups)}
