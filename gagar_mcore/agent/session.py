"""One session: a policy and a sandbox take turns, and every token is kept as it was generated."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gagar_mcore.agent.answering import Answering
from gagar_mcore.agent.compaction import Compaction
from gagar_mcore.agent.gate import Gate
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.tools import ToolResult, ToolSession, ToolSet
from gagar_mcore.agent.transcript import Transcript
from gagar_mcore.engine.protocol import Engine, EngineError, GenerateRequest, Generation
from gagar_mcore.randomness import derive_seed
from gagar_mcore.records.expert_index import ExpertIndex
from gagar_mcore.records.experts import Experts
from gagar_mcore.records.store import FileSum
from gagar_mcore.records.types import EndReason, InvalidReason, Trajectory, Turn
from gagar_mcore.tasks.question import Problem, Question
from gagar_mcore.tasks.room import open_room
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import extract_patch
from gagar_sandbox.types import Limits, SandboxLost, SandboxPool


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Budgets of one session in turns and tokens; `deadline_s` is the backstop in wall time, beside the task's own. When another
    turn does not fit into `max_context`, the session stops, or `overflow` has its context begin anew (see `Compaction`)."""

    max_turns: int
    max_new_tokens: int
    max_context: int
    temperature: float
    deadline_s: float
    overflow: Literal["stop", "compact"] = "stop"

    @property
    def most_read(self) -> int:
        """Tokens that a context may have where a turn is to follow."""
        return self.max_context - self.max_new_tokens


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which session this is: the arguments of every draw it makes."""

    seed: int
    purpose: str  # "train" or "eval"
    step: int
    group_id: str
    member: int

    @property
    def trajectory_id(self) -> str:
        return f"{self.group_id}-m{self.member:02d}"


KeepExperts = Callable[[SessionKey, Experts | ExpertIndex], FileSum]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended: `invalid` where it was not the policy that failed."""

    reason: EndReason
    patch: str = ""
    invalid: InvalidReason | None = None
    detail: str = ""


async def trajectory_of(
    key: SessionKey, task: Problem, transcript: Transcript, ended: Ended, seconds: float, keep_experts: KeepExperts | None
) -> Trajectory:
    """Not yet verified (reward 0). Of the experts only what is trained on is kept."""
    experts = transcript.experts() if ended.invalid is None and key.purpose == "train" else None
    kept = None if keep_experts is None or experts is None else await asyncio.to_thread(keep_experts, key, experts)
    return Trajectory(
        id=key.trajectory_id,
        group_id=key.group_id,
        task_id=task.id,
        member=key.member,
        token_ids=transcript.token_ids,
        logprobs=transcript.logprobs,
        loss_mask=transcript.loss_mask,
        segment_starts=transcript.segment_starts,
        weight_spans=transcript.weight_spans,
        turns=transcript.turns,
        patch=ended.patch,
        end_reason=ended.reason,
        reward=0.0,
        valid=ended.invalid is None,
        invalid_reason=ended.invalid,
        invalid_detail=ended.detail,
        seconds=seconds,
        experts=kept,
    )


@dataclass(frozen=True, slots=True)
class SessionRunner:
    """Runs sessions with one pool, tool set and renderer. `keep_experts` publishes the experts of a session's tokens, where the
    engine records them, and returns the sum of the file; None does not keep them. Deadlines rest while `gate` is closed."""

    pool: SandboxPool
    tools: ToolSet
    renderer: Renderer
    limits: SessionLimits
    sandbox_limits: Limits
    keep_experts: KeepExperts | None = None
    gate: Gate = field(default_factory=Gate)

    async def run(self, key: SessionKey, task: Problem, engine: Engine) -> Trajectory:
        """The ended session, its patch or answer not yet verified (reward 0). A failure of the infrastructure makes it invalid;
        a session past its deadline has failed."""
        started = time.monotonic()
        transcript = Transcript()
        try:
            async with self.gate.deadline(min(self.limits.deadline_s, task.agent_timeout_s)):
                if isinstance(task, Question):
                    ended = Ended(*await self._answer(key, task, engine, transcript))
                else:
                    ended = Ended(*await self._in_sandbox(key, task, engine, transcript))
        except TimeoutError:
            ended = Ended("deadline")
        except EngineError as error:
            ended = Ended("invalid", invalid="engine_failed", detail=str(error))
        except SandboxLost as error:
            ended = Ended("invalid", invalid="sandbox_lost", detail=str(error))
        finally:
            await engine.end_session(key.trajectory_id)
        return await trajectory_of(key, task, transcript, ended, time.monotonic() - started, self.keep_experts)

    async def _answer(self, key: SessionKey, task: Question, engine: Engine, transcript: Transcript) -> tuple[EndReason, str]:
        transcript.add_context(self.renderer.prompt(task.instruction))
        end = await self._turns(key, task.instruction, Answering(), engine, transcript)
        return end, transcript.turns[-1].action if end == "finished" else ""

    async def _in_sandbox(self, key: SessionKey, task: Task, engine: Engine, transcript: Transcript) -> tuple[EndReason, str]:
        sandbox = await open_room(self.pool, task, self.sandbox_limits, {})
        try:
            prompt = self.tools.prompt(task)
            transcript.add_context(self.renderer.prompt(prompt, self.tools.declared))
            end = await self._turns(key, prompt, self.tools.open(sandbox, task), engine, transcript)
            return end, await extract_patch(sandbox, task)
        finally:
            await sandbox.close()

    async def _turns(self, key: SessionKey, prompt: str, tools: ToolSession, engine: Engine, transcript: Transcript) -> EndReason:
        if transcript.context_length > self.limits.most_read:
            return "max_context"
        for index in range(self.limits.max_turns):
            started = time.monotonic()
            [generation] = await engine.generate([self._request(key, index, transcript)])
            answered = time.monotonic()
            transcript.add_generation(generation)
            text = self.renderer.decode(generation.token_ids)
            cut = generation.finish_reason != "stop"
            result = ToolResult("", "", ok=False) if cut else await tools.call(text)
            seconds = time.monotonic() - started
            transcript.turns.append(_turn(index, text, result, generation, seconds, answered - started))
            if cut:
                return "max_tokens"
            if result.finished:
                return "finished"
            if not self._goes_on(transcript, prompt, result.observation):
                return "max_context"
        return "max_turns"

    def _goes_on(self, transcript: Transcript, prompt: str, observation: str) -> bool:
        """Prepare for another turn, if one fits. What does not is not kept: the trainer would have to hold it."""
        context = self.renderer.observation(observation)
        if transcript.context_length + len(context) <= self.limits.most_read:
            transcript.add_context(context)
            return True
        if self.limits.overflow == "stop":
            return False
        opening = Compaction(self.renderer, self.tools.declared, self.limits.most_read).opening(prompt, transcript)
        if opening is not None:
            transcript.begin_segment(opening)
        return opening is not None

    def _request(self, key: SessionKey, turn: int, transcript: Transcript) -> GenerateRequest:
        return GenerateRequest(
            session_id=key.trajectory_id,
            input_ids=transcript.context,
            max_new_tokens=self.limits.max_new_tokens,
            temperature=self.limits.temperature,
            seed=derive_seed(key.seed, f"sample/{key.purpose}", key.step, key.group_id, key.member, turn),
            stop_token_ids=self.renderer.stop_token_ids,
        )


def _turn(index: int, text: str, result: ToolResult, generation: Generation, seconds: float, engine_seconds: float) -> Turn:
    return Turn(
        index=index,
        action=text,
        tool=result.tool,
        observation=result.observation,
        ok=result.ok,
        finish_reason=generation.finish_reason,
        generated_tokens=len(generation.token_ids),
        seconds=seconds,
        engine_seconds=engine_seconds,
    )
