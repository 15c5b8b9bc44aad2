"""A model behind OpenAI's chat API, whatever server answers."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.engine.protocol import EngineError

ATTEMPTS = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FOR_NOW = (408, 409, 425, 429, 500, 502, 503, 504, 529)
MAX_ANSWER_BYTES = 8 << 20

Message = dict[str, str]  # role and content


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Said(_Part):
    content: str | None = None


class _Choice(_Part):
    message: _Said


class _Answer(_Part):
    choices: Annotated[list[_Choice], Field(min_length=1)]


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

    async def answer(self, messages: Sequence[Message]) -> str:
        """What the model says next. A server that is out for now is asked again. Raises EngineError."""
        pause = FIRST_PAUSE_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._ask(messages)
            except _ForNow as error:
                if attempt == ATTEMPTS:
                    raise EngineError(f"{self.url}: {error}, {ATTEMPTS} times") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    async def _ask(self, messages: Sequence[Message]) -> str:
        body = {
            "model": self.name,
            "messages": list(messages),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with asyncio.timeout(self.deadline_s):
                response = await self.http.post(f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _ForNow(f"no answer ({type(error).__name__}: {error})") from error
        if response.status_code in FOR_NOW:
            raise _ForNow(f"status {response.status_code}")
        if response.is_error or len(response.content) > MAX_ANSWER_BYTES:
            raise EngineError(f"{self.url}: status {response.status_code}: {response.text[:300]}")
        try:
            return _Answer.model_validate(json.loads(response.content)).choices[0].message.content or ""
        except (ValidationError, ValueError) as error:
            raise EngineError(f"{self.url}: no answer in the form of OpenAI's chat API: {response.text[:300]}") from error


class _ForNow(RuntimeError):
    """Worth another try."""
