"""A grading model behind the Engine protocol: tokens in and out, by the template of its checkpoint."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gagar_mcore.agent.calls import Tool
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.engine.chat import Message, Reply
from gagar_mcore.engine.protocol import Engine, EngineError, GenerateRequest
from gagar_mcore.grading.written import written_calls


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model, its template, and how it is sampled. A context holds at most `max_context` tokens, an answer `max_new_tokens`."""

    engine: Engine
    renderer: Renderer
    max_context: int
    max_new_tokens: int
    temperature: float

    @asynccontextmanager
    async def open_chat(self) -> AsyncIterator["EngineChat"]:
        """A conversation, whose cache the engine lets go of at its end."""
        chat = EngineChat(self, f"grader-{secrets.token_hex(8)}")
        try:
            yield chat
        finally:
            await self.engine.end_session(chat.session_id)


@dataclass(slots=True)
class EngineChat:
    """One conversation, kept as tokens: what was generated is never rendered again. `heard`: how many messages are in `ids`."""

    model: EngineModel
    session_id: str
    ids: list[int] = field(default_factory=list)
    heard: int = 0

    async def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Reply:
        """What the model says to `messages`, which are those of the last call, its answer, and what came since. Raises
        EngineError, also where its context is full or its answer cut."""
        model, renderer = self.model, self.model.renderer
        contexts = [Context(message["role"], message["content"]) for message in messages[self.heard :]]
        self.ids += renderer.following(contexts) if self.ids else renderer.opening(contexts, [_tool(tool) for tool in tools])
        self.heard = len(messages) + 1
        if len(self.ids) + model.max_new_tokens > model.max_context:
            raise EngineError(f"the context of {model.max_context} tokens is full")
        read = len(self.ids)
        [generation] = await model.engine.generate([self._request()])
        if generation.finish_reason != "stop":
            raise EngineError(f"an answer of more than {model.max_new_tokens} tokens")
        self.ids += generation.token_ids
        text = renderer.decode(generation.token_ids)
        calls = tuple(replace(call, id=f"call-{index}") for index, call in enumerate(written_calls(text, [renderer.calls])))
        return Reply(text, calls, read, len(generation.token_ids))

    def _request(self) -> GenerateRequest:
        return GenerateRequest(
            session_id=self.session_id,
            input_ids=tuple(self.ids),
            max_new_tokens=self.model.max_new_tokens,
            temperature=self.model.temperature,
            seed=secrets.randbits(31),
            stop_token_ids=self.model.renderer.stop_token_ids,
        )


def _tool(declared: dict[str, Any]) -> Tool:
    function = declared["function"]
    return Tool(function["name"], function["description"], declared=function["parameters"])
