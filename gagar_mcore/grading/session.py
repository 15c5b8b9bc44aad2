"""A session of a grading model: it calls tools until it hands in what it was asked for, or a budget is used up."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from gagar_mcore.credit import VerdictError
from gagar_mcore.engine.chat import Call, Message, Reply
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.grading.desk import Desk
from gagar_mcore.grading.protocol import SessionFailed
from gagar_mcore.grading.roster import ToolError
from gagar_mcore.grading.text import bounded
from gagar_mcore.grading.tools import declarations, use_tool
from gagar_mcore.grading.written import bare_call, written_calls
from gagar_mcore.tracking.text import visible
from gagar_sandbox.types import SandboxLost, SandboxUnavailable

TEXT_CHARACTERS = 32_000
ARGUMENT_CHARACTERS = 200_000
CALLS_A_TURN = 8
IDLE_TURNS = 3
CLOSING_TURNS = 2

Result = TypeVar("Result")


class Chat(Protocol):
    async def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Reply:
        """What the model says next. Raises EngineError."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`tokens`: read and written, summed over the requests of a session, as they are paid for."""

    turns: int
    tokens: int
    seconds: float


@dataclass(slots=True)
class Usage:
    """What sessions took so far."""

    turns: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Submission(Generic[Result]):
    """What a session is to hand in: `declared` as a tool, read by `read`, which raises VerdictError."""

    name: str
    declared: dict[str, Any]
    read: Callable[[str], Result]


@dataclass(slots=True)
class GraderSession(Generic[Result]):
    """One conversation. A submission that is refused may be mended once."""

    chat: Chat
    desk: Desk
    budget: Budget
    submission: Submission[Result]
    usage: Usage = field(default_factory=Usage)
    messages: list[Message] = field(default_factory=list)
    refused: bool = False

    async def run(self, system: str, user: str) -> Result:
        """What is handed in. Raises SessionFailed."""
        self.messages += [{"role": "system", "content": system}, {"role": "user", "content": user}]
        ends = time.monotonic() + self.budget.seconds
        try:
            async with asyncio.timeout(self.budget.seconds):
                return await self._turns()
        except TimeoutError as error:
            if time.monotonic() < ends:
                raise
            raise SessionFailed("deadline", f"no verdict after {self.budget.seconds:g} s") from error
        except EngineError as error:
            raise SessionFailed("endpoint", str(error)) from error
        except (SandboxLost, SandboxUnavailable) as error:
            raise SessionFailed("sandbox", str(error)) from error

    async def _turns(self) -> Result:
        idle = 0
        while self.usage.turns < self.budget.turns + self.refused:
            calls = await self._ask()
            if self.usage.tokens > self.budget.tokens:
                raise SessionFailed("tokens", f"more than {self.budget.tokens} are used")
            idle = 0 if calls else idle + 1
            if idle == IDLE_TURNS:
                raise SessionFailed("calls", f"no tool called in {IDLE_TURNS} turns")
            for call in calls[:CALLS_A_TURN]:
                if call.name == self.submission.name:
                    try:
                        return self.submission.read(call.arguments)
                    except VerdictError as error:
                        self._refuse(call, error)
                else:
                    self._say(call, await self._used(call))
            for call in calls[CALLS_A_TURN:]:
                self._say(call, f"refused: at most {CALLS_A_TURN} calls in a turn")
            self._remind(bool(calls))
        raise SessionFailed("turns", f"no verdict after {self.budget.turns}")

    async def _ask(self) -> list[Call]:
        """The calls of the model's next answer, which joins the conversation."""
        reply = await self.chat.reply(self.messages, [*declarations(), self.submission.declared])
        self.usage.turns += 1
        self.usage.tokens += reply.read_tokens + reply.written_tokens
        calls = list(reply.calls) or written_calls(reply.text) or bare_call(reply.text)
        if any(len(call.arguments) > ARGUMENT_CHARACTERS for call in calls):
            raise SessionFailed("calls", f"arguments of more than {ARGUMENT_CHARACTERS} characters")
        said: Message = {"role": "assistant", "content": bounded(visible(reply.text), TEXT_CHARACTERS)}
        if reply.calls:
            said["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _object(c.arguments)}}
                for c in reply.calls
            ]
        self.messages.append(said)
        return calls

    async def _used(self, call: Call) -> str:
        try:
            return await use_tool(self.desk, call.name, call.arguments)
        except ToolError as error:
            return f"error: {error}"

    def _refuse(self, call: Call, error: VerdictError) -> None:
        """Once; the second time it ends the session."""
        if self.refused:
            raise SessionFailed("invalid", str(error)) from error
        self.refused = True
        self._say(call, f"refused: {error}. Correct it and call {self.submission.name} again now; this is the last time.")

    def _say(self, call: Call, text: str) -> None:
        if call.id:
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        else:
            self.messages.append({"role": "user", "content": text})

    def _remind(self, called: bool) -> None:
        left = self.budget.turns - self.usage.turns
        if not called:
            self.messages.append({"role": "user", "content": f"Call a tool, or hand in with {self.submission.name}."})
        elif 0 < left <= CLOSING_TURNS and not self.refused:
            self.messages.append({"role": "user", "content": f"{left} turns are left: call {self.submission.name} now."})


def _object(arguments: str) -> str:
    """Themselves where they are a JSON object, else an empty one: servers refuse a conversation that holds anything else."""
    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except (ValueError, RecursionError):
        return "{}"
