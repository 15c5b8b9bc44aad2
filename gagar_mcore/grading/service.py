"""Grading beside collection: bounded in number and in time, and never the reason why a step fails."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from gagar_mcore.config.learning import GradingSection
from gagar_mcore.credit import CreditParams, VerdictError
from gagar_mcore.grading.choice import grader_of
from gagar_mcore.grading.protocol import Grader
from gagar_mcore.grading.tally import Tally
from gagar_mcore.grading.validate import validate
from gagar_mcore.grading.workspace import write_workspace
from gagar_mcore.records.types import Trajectory, Verdict
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Limits, SandboxPool

REASON_CHARACTERS = 300
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class GradingService:
    """Grades groups with one grader, at most `slots` of them at a time; without a grader nothing is graded.

    `deadline_s` counts from the call, the wait for a slot included. `params` is what verdicts are checked with."""

    grader: Grader | None
    deadline_s: float
    slots: asyncio.Semaphore
    params: CreditParams
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def from_section(
        cls, section: GradingSection, params: CreditParams, pool: SandboxPool | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> Self:
        """pool, limits: of the sandboxes that checks run in; without a pool none can be run."""
        tally = Tally()
        grader = grader_of(section, params, pool, limits, tally)
        return cls(grader, section.deadline_s, asyncio.Semaphore(section.concurrency), params, tally)

    async def grade(
        self, path: Path, group_id: str, task: Task, trajectories: Sequence[Trajectory]
    ) -> tuple[Verdict | None, str | None, float]:
        """(verdict, None, seconds), or (None, reason, seconds) where there is none to use: "late", "failed: ...", "invalid: ...".
        Without a grader both are None. The workspace is written to `path`."""
        if self.grader is None:
            return None, None, 0.0
        started = time.monotonic()
        verdict, reason = await self._within_deadline(self.grader, path, group_id, task, trajectories)
        seconds = time.monotonic() - started
        self.tally.graded(reason)
        return (replace(verdict, seconds=seconds) if verdict else None), reason, seconds

    async def _within_deadline(
        self, grader: Grader, path: Path, group_id: str, task: Task, trajectories: Sequence[Trajectory]
    ) -> tuple[Verdict | None, str | None]:
        """The call that runs past the deadline is cancelled and not waited for: it may not heed its cancellation."""
        call = asyncio.create_task(self._grade(grader, path, group_id, task, trajectories))
        call.add_done_callback(_take_outcome)
        try:
            done, _ = await asyncio.wait({call}, timeout=self.deadline_s)
        finally:
            call.cancel()
        if not done:
            return None, "late"
        try:
            return call.result(), None
        except VerdictError as error:
            return None, f"invalid: {error}"
        except (Exception, asyncio.CancelledError) as error:
            return None, f"failed: {type(error).__name__}: {error}"[:REASON_CHARACTERS]

    async def _grade(self, grader: Grader, path: Path, group_id: str, task: Task, trajectories: Sequence[Trajectory]) -> Verdict:
        async with self.slots:
            workspace = await asyncio.to_thread(write_workspace, path, group_id, task, trajectories)
            verdict = await grader.grade(workspace)
            await asyncio.to_thread(validate, verdict, workspace, self.params)
            return verdict


def _take_outcome(call: "asyncio.Task[Verdict]") -> None:
    """The failure of a call that nobody waits for any more is no news; asyncio would report it as never retrieved."""
    if not call.cancelled():
        call.exception()
