"""What every grader offers."""

from typing import Literal, Protocol, get_args

from gagar_mcore.grading.workspace import Workspace
from gagar_mcore.records.types import Verdict

Reason = Literal["endpoint", "turns", "tokens", "deadline", "calls", "invalid", "sandbox"]


class GraderError(RuntimeError):
    """A grader that could not judge a group; the message says why."""


class SessionFailed(GraderError):
    """A session of a model that came to no verdict. `reason` is what it is counted by, and begins the message."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def fallback_reason(fallback: str) -> str:
    """What a fallback of the grading service is counted by: `late`, `invalid`, `failed`, or the reason of a session that failed
    (`turns`, `endpoint`, ...)."""
    kind, _, rest = fallback.partition(": ")
    error, _, detail = rest.partition(": ")
    reason = detail.partition(":")[0]
    return reason if (kind, error) == ("failed", SessionFailed.__name__) and reason in get_args(Reason) else kind


class Grader(Protocol):
    """Compares the passing trajectories of a group. Texts of the policy are data to it, whatever they say."""

    async def grade(self, workspace: Workspace) -> Verdict:
        """One grade for each passing trajectory, every negative judgement with its citations. Raises GraderError, or anything
        else, which counts as failed. It never blocks the event loop, and lets go of everything when it is cancelled."""
