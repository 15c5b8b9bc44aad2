"""One session: a policy and a sandbox take turns, and every token is kept as it was generated."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gagar_mcore.agent.answering import Answering
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.tools import ToolResult, ToolSession, ToolSet
from gagar_mcore.engine.protocol import Engine, EngineError, GenerateRequest, Generation, RoutedTokens
from gagar_mcore.randomness import derive_seed
from gagar_mcore.records.experts import UNKNOWN, Experts
from gagar_mcore.records.store import FileSum
from gagar_mcore.records.types import EndReason, InvalidReason, Trajectory, Turn, WeightSpan
from gagar_mcore.tasks.question import Problem, Question
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import BASE, extract_patch
from gagar_sandbox.types import Limits, SandboxLost, SandboxPool, SandboxSpec


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Budgets of one session in turns and tokens; `deadline_s` is the backstop in wall time, beside the task's own."""

    max_turns: int
    max_new_tokens: int
    max_context: int
    temperature: float
    deadline_s: float


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


@dataclass(slots=True)
class Transcript:
    """The session so far; `token_ids`, `logprobs` and `loss_mask` always have equal lengths."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    weight_spans: list[WeightSpan] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    routed: list[RoutedTokens] = field(default_factory=list)

    def add_context(self, ids: list[int]) -> None:
        self.token_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.loss_mask += [0] * len(ids)

    def add_generation(self, generation: Generation) -> None:
        offset = len(self.token_ids)
        self.token_ids += generation.token_ids
        self.logprobs += generation.logprobs
        self.loss_mask += [1] * len(generation.token_ids)
        self.weight_spans += [WeightSpan(s.version, s.start + offset, s.end + offset) for s in generation.weight_spans]
        if (new := generation.routed) is not None:
            self.routed = [*(earlier for earlier in self.routed if earlier.start < new.start), new]

    def experts(self) -> Experts | None:
        """Of every token, `UNKNOWN` where the engine has not said; what it said last counts. None where it never did."""
        if not self.routed:
            return None
        experts = np.full((len(self.token_ids), *self.routed[0].experts.shape[1:]), UNKNOWN, np.int16)
        for routed in self.routed:
            experts[routed.start : routed.start + len(routed.experts)] = routed.experts
        return experts


@dataclass(frozen=True, slots=True)
class SessionRunner:
    """Runs sessions with one pool, tool set and renderer. `keep_experts` publishes the experts of a session's tokens, where the
    engine records them, and returns the sum of the file; None does not keep them."""

    pool: SandboxPool
    tools: ToolSet
    renderer: Renderer
    limits: SessionLimits
    sandbox_limits: Limits
    keep_experts: Callable[[SessionKey, Experts], FileSum] | None = None

    async def run(self, key: SessionKey, task: Problem, engine: Engine) -> Trajectory:
        """The ended session, its patch or answer not yet verified (reward 0). A failure of the infrastructure makes it invalid;
        a session past its deadline has failed."""
        started = time.monotonic()
        transcript = Transcript()
        patch = ""
        end: EndReason = "invalid"
        invalid: InvalidReason | None = None
        detail = ""
        try:
            async with asyncio.timeout(min(self.limits.deadline_s, task.agent_timeout_s)):
                if isinstance(task, Question):
                    end, patch = await self._answer(key, task, engine, transcript)
                else:
                    end, patch = await self._in_sandbox(key, task, engine, transcript)
        except TimeoutError:
            end = "deadline"
        except EngineError as error:
            invalid, detail = "engine_failed", str(error)
        except SandboxLost as error:
            invalid, detail = "sandbox_lost", str(error)
        finally:
            await engine.end_session(key.trajectory_id)
        return Trajectory(
            id=key.trajectory_id,
            group_id=key.group_id,
            task_id=task.id,
            member=key.member,
            token_ids=transcript.token_ids,
            logprobs=transcript.logprobs,
            loss_mask=transcript.loss_mask,
            weight_spans=transcript.weight_spans,
            turns=transcript.turns,
            patch=patch,
            end_reason=end,
            reward=0.0,
            valid=invalid is None,
            invalid_reason=invalid,
            invalid_detail=detail,
            seconds=time.monotonic() - started,
            experts=await self._kept_experts(key, transcript) if invalid is None else None,
        )

    async def _kept_experts(self, key: SessionKey, transcript: Transcript) -> FileSum | None:
        """Only what is trained on is kept."""
        experts = transcript.experts() if key.purpose == "train" else None
        if self.keep_experts is None or experts is None:
            return None
        return await asyncio.to_thread(self.keep_experts, key, experts)

    async def _answer(self, key: SessionKey, task: Question, engine: Engine, transcript: Transcript) -> tuple[EndReason, str]:
        transcript.add_context(self.renderer.prompt(task.instruction))
        end = await self._turns(key, Answering(), engine, transcript)
        return end, transcript.turns[-1].action if end == "finished" else ""

    async def _in_sandbox(self, key: SessionKey, task: Task, engine: Engine, transcript: Transcript) -> tuple[EndReason, str]:
        spec = SandboxSpec(task.repository, task.workdir, {BASE: task.repository}, self.sandbox_limits)
        sandbox = await self.pool.acquire(spec)
        try:
            transcript.add_context(self.renderer.prompt(self.tools.prompt(task), self.tools.declared))
            end = await self._turns(key, self.tools.open(sandbox, task), engine, transcript)
            return end, await extract_patch(sandbox, task)
        finally:
            await sandbox.close()

    async def _turns(self, key: SessionKey, tools: ToolSession, engine: Engine, transcript: Transcript) -> EndReason:
        if not self._leaves_room(transcript, []):
            return "max_context"
        for index in range(self.limits.max_turns):
            started = time.monotonic()
            [generation] = await engine.generate([self._request(key, index, transcript)])
            transcript.add_generation(generation)
            text = self.renderer.decode(generation.token_ids)
            cut = generation.finish_reason != "stop"
            result = ToolResult("", "", ok=False) if cut else await tools.call(text)
            transcript.turns.append(_turn(index, text, result, generation, time.monotonic() - started))
            if cut:
                return "max_tokens"
            if result.finished:
                return "finished"
            observation = self.renderer.observation(result.observation)
            if not self._leaves_room(transcript, observation):
                return "max_context"
            transcript.add_context(observation)
        return "max_turns"

    def _leaves_room(self, transcript: Transcript, context: list[int]) -> bool:
        """Whether another turn fits behind `context`. What does not fit is not kept: the trainer would have to hold it."""
        return len(transcript.token_ids) + len(context) + self.limits.max_new_tokens <= self.limits.max_context

    def _request(self, key: SessionKey, turn: int, transcript: Transcript) -> GenerateRequest:
        return GenerateRequest(
            session_id=key.trajectory_id,
            input_ids=list(transcript.token_ids),
            max_new_tokens=self.limits.max_new_tokens,
            temperature=self.limits.temperature,
            seed=derive_seed(key.seed, f"sample/{key.purpose}", key.step, key.group_id, key.member, turn),
            stop_token_ids=self.renderer.stop_token_ids,
        )


def _turn(index: int, text: str, result: ToolResult, generation: Generation, seconds: float) -> Turn:
    return Turn(
        index=index,
        action=text,
        tool=result.tool,
        observation=result.observation,
        ok=result.ok,
        finish_reason=generation.finish_reason,
        generated_tokens=len(generation.token_ids),
        seconds=seconds,
    )
