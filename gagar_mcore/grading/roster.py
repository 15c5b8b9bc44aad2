"""Candidates under names that say nothing."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from gagar_mcore.records.types import Trajectory

NAME_BITS = 24


class ToolError(ValueError):
    """A call that cannot be carried out. The message is shown to the grader and repeats nothing of the call: a grader may copy
    into it what the policy wrote."""


@dataclass(frozen=True, slots=True)
class Roster:
    """`members`: the trajectories of one session under random names, in random order. Their own ids stay out of its sight."""

    members: Mapping[str, Trajectory]

    @classmethod
    def shuffled(cls, trajectories: Iterable[Trajectory], rng: random.Random) -> Self:
        order = list(trajectories)
        rng.shuffle(order)
        names: dict[str, None] = {}
        while len(names) < len(order):
            names[f"c{rng.getrandbits(NAME_BITS):06x}"] = None
        return cls(dict(zip(names, order, strict=True)))

    @property
    def passing(self) -> dict[str, Trajectory]:
        return {name: trajectory for name, trajectory in self.members.items() if trajectory.passed}

    def find(self, name: str) -> Trajectory:
        """Raises ToolError."""
        if name not in self.members:
            raise ToolError(f"there is no such candidate; there are {', '.join(self.members)}")
        return self.members[name]

    def name_of(self, trajectory_id: str) -> str:
        return next(name for name, trajectory in self.members.items() if trajectory.id == trajectory_id)
