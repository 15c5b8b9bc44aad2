"""Sessions of an outside agent: its command runs in a sandbox, and its only way out is the proxy."""

import time
from dataclasses import dataclass, field, replace

from gagar_mcore.agent.gate import Gate
from gagar_mcore.agent.proxy.outside import OutsideAgent
from gagar_mcore.agent.proxy.recorder import Recorder
from gagar_mcore.agent.proxy.rooms import open_rooms
from gagar_mcore.agent.proxy.segments import joined
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.session import Ended, KeepExperts, SessionKey, SessionLimits, SessionRunner, trajectory_of
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.records.types import Trajectory
from gagar_mcore.tasks.question import Problem, Question
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import extract_patch
from gagar_sandbox.types import ExecResult, Limits, SandboxLost, SandboxPool

DETAIL_CHARACTERS = 500
REST_S = 7 * 86400.0  # longer than any gate is closed: the session's own deadline comes first


@dataclass(frozen=True, slots=True)
class OutsideRunner:
    """Runs sessions like a SessionRunner, of an agent that is not ours. `keep_experts` and `gate` as there. `own` answers
    questions: they need no agent."""

    pool: SandboxPool
    agent: OutsideAgent
    renderer: Renderer
    limits: SessionLimits
    sandbox_limits: Limits
    keep_experts: KeepExperts | None = None
    own: SessionRunner | None = None
    gate: Gate = field(default_factory=Gate)

    async def run(self, key: SessionKey, task: Problem, engine: Engine) -> Trajectory:
        """The ended session, its patch not yet verified (reward 0), each conversation of the agent a segment. One in which the
        agent failed before it asked anything is invalid; one past its deadline has failed."""
        if isinstance(task, Question):
            return await self._answered(key, task, engine)
        started = time.monotonic()
        recorder = Recorder(key, engine, self.renderer, self.limits, self.agent.bounds)
        ended = Ended("invalid")
        try:
            async with self.gate.deadline(min(self.limits.deadline_s, task.agent_timeout_s)):
                ended = await self._in_sandbox(task, recorder)
        except TimeoutError:
            ended = Ended("deadline")
        except SandboxLost as error:
            ended = Ended("invalid", invalid="sandbox_lost", detail=str(error))
        finally:
            await recorder.close()
        if recorder.failure is not None:
            reason, detail = recorder.failure
            ended = Ended("invalid", invalid=reason, detail=detail)
        whole, seconds = joined(recorder.segments), time.monotonic() - started
        return await trajectory_of(key, task, whole, ended, seconds, self.keep_experts)

    async def _answered(self, key: SessionKey, question: Question, engine: Engine) -> Trajectory:
        if self.own is None:
            raise ValueError(f"{question.id}: a question, and nothing here answers it")
        return await replace(self.own, limits=self.limits).run(key, question, engine)

    async def _in_sandbox(self, task: Task, recorder: Recorder) -> Ended:
        async with open_rooms(self.pool, self.agent, task, self.sandbox_limits, recorder) as rooms:
            result = await self.agent.work(rooms.agent, task, recorder, rooms.secret, self.limits.deadline_s + REST_S)
            return _ended(recorder, result, await extract_patch(rooms.task, task))


def _ended(recorder: Recorder, result: ExecResult | None, patch: str) -> Ended:
    """An agent that failed without having asked the policy anything is not the policy's fault."""
    failed = result is not None and (result.outcome, result.exit_code) != ("exited", 0)
    if result is not None and not recorder.segments and recorder.refused is None:
        what = f"exit code {result.exit_code} ({result.outcome})"
        said = (result.stderr or result.stdout)[-DETAIL_CHARACTERS:].decode(errors="replace")
        return Ended("invalid", invalid="agent_failed", detail=f"it asked the policy nothing; {what}: {said}")
    return Ended(recorder.refused or ("agent_failed" if failed else "finished"), patch)
