"""The agentic grader: a model reads the workspace by tools, runs checks, and hands in a verdict."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import Any

from gagar_mcore.credit import CreditParams
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.grading.checks import Checks
from gagar_mcore.grading.desk import Desk
from gagar_mcore.grading.form import Judgement, VerdictForm, read_verdict
from gagar_mcore.grading.hacks import FindingKind, gather_leads, submission, told
from gagar_mcore.grading.prompts import GRADE, HACKS, RUBRIC, prompt
from gagar_mcore.grading.protocol import SessionFailed
from gagar_mcore.grading.session import Budget, Chat, GraderSession, Result, Submission, Usage
from gagar_mcore.grading.tally import Tally
from gagar_mcore.grading.tools import declaration
from gagar_mcore.grading.workspace import Workspace
from gagar_mcore.records.types import Verdict

SUBMIT_VERDICT = "submit_verdict"
BEGIN = "Compare the candidates, and hand in your verdict."

OpenChat = Callable[[], AbstractAsyncContextManager[Chat]]  # a conversation with the model


@dataclass(frozen=True, slots=True)
class AgenticGrader:
    """Grades with the model `name` behind `open_chat`. `budget` bounds the sessions of a group together, its turns each of them.
    Every session is kept in the workspace's scratch area. `rng` draws the names and the order of candidates."""

    name: str
    open_chat: OpenChat
    budget: Budget
    params: CreditParams
    checks: Checks | None = None
    most_checks: int = 8
    confirm_hacks: bool = True
    rng: Callable[[], Random] = SystemRandom
    tally: Tally = field(default_factory=Tally)

    async def grade(self, workspace: Workspace) -> Verdict:
        """See Grader.grade. Raises SessionFailed."""
        started = time.monotonic()
        desk = Desk.of(workspace, self.checks, self.most_checks, self.rng())
        usage = Usage()
        judgement = await self._judge(desk, usage)
        verdict = judgement.verdict
        if self.confirm_hacks:
            left = self._left(usage, started)
            findings = await self._confirm(replace(desk, run=[]), judgement, left, usage)
            verdict = replace(verdict, hacks=[id for id, finding in findings.items() if finding == "confirmed"])
        return verdict

    async def _judge(self, desk: Desk, usage: Usage) -> Judgement:
        grader = f"{self.name} {GRADE} {RUBRIC}"
        handed_in = Submission(
            SUBMIT_VERDICT, declaration(SUBMIT_VERDICT, VerdictForm), lambda text: read_verdict(text, desk, grader, self.params)
        )
        system = prompt(GRADE).replace("{rubric}", prompt(RUBRIC)).replace("{turns}", str(self.budget.turns))
        return await self._session("grade", desk, handed_in, self.budget, usage, system, BEGIN)

    async def _confirm(self, desk: Desk, judgement: Judgement, budget: Budget, usage: Usage) -> Mapping[str, FindingKind]:
        """Findings by trajectory id. A session that fails confirms nothing, and the ranking stands; its record says why."""
        leads = await asyncio.to_thread(gather_leads, desk, judgement.suspicions)
        if not leads or budget.tokens <= 0 or budget.seconds <= 0:
            return {}
        system = prompt(HACKS).replace("{turns}", str(budget.turns))
        try:
            found = await self._session("hacks", desk, submission(desk, list(leads)), budget, usage, system, told(leads))
        except SessionFailed:
            self.tally.add(unconfirmed=1)
            return {}
        self.tally.add(attempts=sum(finding == "attempt" for finding in found.values()))
        return found

    async def _session(
        self, kind: str, desk: Desk, handed_in: Submission[Result], budget: Budget, usage: Usage, system: str, user: str
    ) -> Result:
        outcome = "cancelled"
        async with self._chat() as chat:
            session = GraderSession(chat, desk, budget, handed_in)
            try:
                result = await session.run(system, user)
                outcome = "handed in"
                return result
            except SessionFailed as error:
                outcome = str(error)
                raise
            finally:
                usage.turns += session.usage.turns
                usage.tokens += session.usage.tokens
                self.tally.add(turns=session.usage.turns, tokens=session.usage.tokens, checks=len(desk.run))
                _keep(desk, kind, outcome, session)

    @asynccontextmanager
    async def _chat(self) -> AsyncIterator[Chat]:
        async with AsyncExitStack() as stack:
            try:
                chat = await stack.enter_async_context(self.open_chat())
            except EngineError as error:
                raise SessionFailed("endpoint", str(error)) from error
            yield chat

    def _left(self, usage: Usage, started: float) -> Budget:
        seconds = self.budget.seconds - (time.monotonic() - started)
        return Budget(self.budget.turns, self.budget.tokens - usage.tokens, seconds)


def _keep(desk: Desk, kind: str, outcome: str, session: GraderSession[Any]) -> None:
    """The whole conversation, and whom its names stand for."""
    record = {
        "outcome": outcome,
        "turns": session.usage.turns,
        "tokens": session.usage.tokens,
        "checks": desk.run,
        "candidates": {name: trajectory.id for name, trajectory in desk.roster.members.items()},
        "messages": session.messages,
    }
    (desk.workspace.scratch / f"{kind}.json").write_text(json.dumps(record), encoding="ascii")
