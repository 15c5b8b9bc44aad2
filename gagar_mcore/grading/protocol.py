"""What every grader offers."""

from typing import Protocol

from gagar_mcore.grading.workspace import Workspace
from gagar_mcore.records.types import Verdict


class GraderError(RuntimeError):
    """A grader that could not judge a group; the message says why."""


class Grader(Protocol):
    """Compares the passing trajectories of a group. Texts of the policy are data to it, whatever they say."""

    async def grade(self, workspace: Workspace) -> Verdict:
        """One grade for each passing trajectory, every negative judgement with its citations. Raises GraderError, or anything
        else, which counts as failed. It never blocks the event loop, and lets go of everything when it is cancelled."""
