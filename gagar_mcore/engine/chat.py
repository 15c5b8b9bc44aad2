"""A model behind OpenAI's chat API, whatever server answers."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.engine.protocol import EngineError

ATTEMPTS = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FOR_NOW = (408, 409, 425, 429, 500, 502, 503, 504, 529)
MAX_ANSWER_BYTES = 8 << 20
CHARACTERS_A_TOKEN = 3  # of a server that does not count

Message = dict[str, Any]  # as the API has it: role and content, and the calls of an answer


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments`: the text that the model wrote, which need not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says next, and how many tokens it read and wrote for it: as the server counts, or a guess."""

    text: str
    calls: tuple[Call, ...]
    read_tokens: int
    written_tokens: int


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Function(_Part):
    name: str
    arguments: str | dict[str, Any] = "{}"


class _ToolCall(_Part):
    id: str = ""
    function: _Function


class _Said(_Part):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(_Part):
    message: _Said


class _Usage(_Part):
    prompt_tokens: Annotated[int, Field(ge=0)] = 0
    completion_tokens: Annotated[int, Field(ge=0)] = 0


class _Answer(_Part):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class ChatModel:
    """`url`: what comes before `/chat/completions`. `deadline_s` bounds one request."""

    http: httpx.AsyncClient
    url: str
    name: str
    key: str = field(repr=False)
    temperature: float
    max_tokens: int
    deadline_s: float
    attempts: int = ATTEMPTS

    async def answer(self, messages: Sequence[Message]) -> str:
        """The text of `reply`. Raises EngineError."""
        return (await self.reply(messages)).text

    async def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> Reply:
        """What the model says next; `tools`: those it may call, as the API declares them. A server that is out for now is asked
        again. Raises EngineError."""
        pause = FIRST_PAUSE_S
        for attempt in range(1, self.attempts + 1):
            try:
                return await self._ask(messages, tools)
            except _ForNow as error:
                if attempt == self.attempts:
                    raise EngineError(f"{self.url}: {error}, {self.attempts} times") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    async def _ask(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Reply:
        body = {
            "model": self.name,
            "messages": list(messages),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **({"tools": list(tools)} if tools else {}),
        }
        try:
            async with asyncio.timeout(self.deadline_s):
                status, content = await self._post(body)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _ForNow(f"no answer ({type(error).__name__}: {error})") from error
        begins = content[:300].decode(errors="replace")
        if status in FOR_NOW:
            raise _ForNow(f"status {status}")
        if status >= 300 or len(content) > MAX_ANSWER_BYTES:
            raise EngineError(f"{self.url}: status {status}: {begins}")
        try:
            return _reply(_Answer.model_validate(json.loads(content)), json.dumps(body))
        except (ValidationError, ValueError, RecursionError) as error:
            raise EngineError(f"{self.url}: no answer in the form of OpenAI's chat API: {begins}") from error

    async def _post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status, and content up to where there is too much of it."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        address, content = f"{self.url.rstrip('/')}/chat/completions", bytearray()
        async with self.http.stream("POST", address, json=body, headers=headers) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    break
        return response.status_code, bytes(content)


class _ForNow(RuntimeError):
    """Worth another try."""


def _reply(answer: _Answer, asked: str) -> Reply:
    said = answer.choices[0].message
    calls = tuple(
        Call(_sendable(call.id) or f"call-{index}", _sendable(call.function.name), _sendable(_text(call.function.arguments)))
        for index, call in enumerate(said.tool_calls or [])
    )
    text = _sendable(said.content or "")
    written = len(text) + sum(len(call.arguments) for call in calls)
    usage = answer.usage or _Usage(
        prompt_tokens=len(asked) // CHARACTERS_A_TOKEN, completion_tokens=written // CHARACTERS_A_TOKEN
    )
    return Reply(text, calls, usage.prompt_tokens, usage.completion_tokens)


def _sendable(text: str) -> str:
    """Without lone surrogates, which JSON can say and UTF-8 cannot: an answer is sent back with the next request."""
    return text.encode(errors="replace").decode()


def _text(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
