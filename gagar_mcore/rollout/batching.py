"""From groups to the batch of one step, on disk as they complete."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gagar_mcore.credit import Aggregation, aggregation_weights
from gagar_mcore.records.batch_writer import BatchWriter
from gagar_mcore.records.columns import Column
from gagar_mcore.records.expert_index import ExpertIndex
from gagar_mcore.records.experts import open_experts
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import FileSum
from gagar_mcore.records.types import Group, Trajectory


class BatchBuilder:
    """Writes groups, one after the other, into the columns of a step's batch; it keeps nothing of them but numbers a
    trajectory."""

    def __init__(self, directory: Path, layout: RunLayout) -> None:
        self._layout = layout
        self._writer = BatchWriter(directory)
        self._owners: list[str] = []  # of each sequence, its trajectory
        self._tokens: list[int] = []  # of each trajectory, how many it generated
        self._prompts: list[str] = []  # of each trajectory, its group

    def append(self, group: Group, trajectories: Iterable[Trajectory]) -> None:
        """Those of the group's trajectories that have an advantage and generated anything, in order. Raises RecordError where
        recorded experts are missing or damaged."""
        for trajectory in trajectories:
            advantage, generated = group.credit.advantages.get(trajectory.id), trajectory.generated_tokens
            if advantage is None or not generated:
                continue
            sequences = self._writer.append(trajectory, advantage, self._experts(group, trajectory))
            self._owners += [trajectory.id] * sequences
            self._tokens.append(generated)
            self._prompts.append(group.id)

    def _experts(self, group: Group, trajectory: Trajectory) -> Column | ExpertIndex | None:
        if trajectory.experts is None:
            return None
        return open_experts(self._layout.experts(group.step, trajectory.id), trajectory.experts)

    def abandon(self) -> None:
        """Nobody wants the batch any more, or it is finished."""
        self._writer.abandon()

    def finish(self, aggregation: Aggregation) -> tuple[dict[str, Any], dict[str, FileSum]]:
        """What the manifest says of the batch, and the sums of its files. The prompts of `prompt-mean` are the groups; a
        trajectory weighs as much in several segments as in one."""
        sums = self._writer.finish(aggregation_weights(self._tokens, self._prompts, aggregation))
        return {"trajectory_ids": self._owners, "prompts": len(set(self._prompts))}, sums
