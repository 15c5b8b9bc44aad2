"""What one grading session works on."""

import random
from dataclasses import dataclass, field
from typing import Self

from gagar_mcore.grading.applied import applied
from gagar_mcore.grading.checks import Checks
from gagar_mcore.grading.roster import Roster
from gagar_mcore.grading.workspace import Workspace
from gagar_mcore.records.types import Trajectory


@dataclass(frozen=True, slots=True)
class Desk:
    """A workspace under names that say nothing. `checks` None: nothing can be run. `most_checks` bounds their number."""

    workspace: Workspace
    roster: Roster
    checks: Checks | None = None
    most_checks: int = 8
    run: list[int] = field(default_factory=list)  # the numbers of the checks of this session
    read: dict[str, dict[str, str | None]] = field(default_factory=dict)  # by trajectory: what `after` has found

    @classmethod
    def of(cls, workspace: Workspace, checks: Checks | None, most_checks: int, rng: random.Random) -> Self:
        return cls(workspace, Roster.shuffled(workspace.trajectories, rng), checks, most_checks)

    def after(self, trajectory: Trajectory) -> dict[str, str | None]:
        """The files that a trajectory changes, as it leaves them; None: deleted."""
        if trajectory.id not in self.read:
            self.read[trajectory.id] = applied(trajectory.patch, self.workspace.base_text).files
        return self.read[trajectory.id]

    def text(self, trajectory: Trajectory | None, path: str) -> str | None:
        """A file as a trajectory leaves it, or of the base commit; None where there is none."""
        files = self.after(trajectory) if trajectory is not None else {}
        return files[path] if path in files else self.workspace.base_text(path)

    def checks_on(self, trajectory: Trajectory) -> list[int]:
        return [number for number, id in self.workspace.checks().items() if id == trajectory.id]
