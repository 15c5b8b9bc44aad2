"""What tests of the session proxy share: a scripted model, real checkpoints' templates, a client on the socket."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from chat_models import chat_tokenizer

from gagar_mcore.agent.calls import Answer, ToolCall
from gagar_mcore.agent.proxy.endpoint import Endpoint
from gagar_mcore.agent.proxy.http import UnixServer
from gagar_mcore.agent.proxy.limits import ProxyLimits
from gagar_mcore.agent.proxy.recorder import Recorder
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.session import SessionKey, SessionLimits
from gagar_mcore.agent.template_mimo import MimoRenderer
from gagar_mcore.agent.template_qwen3 import Qwen3Renderer
from gagar_mcore.agent.template_tiny import TinyRenderer
from gagar_mcore.agent.tokenizer import train_tokenizer
from gagar_mcore.agent.vocabulary import Vocabulary
from gagar_mcore.engine.protocol import GenerateRequest, Generation, RoutedTokens
from gagar_mcore.records.types import WeightSpan

KEY = SessionKey(seed=1, purpose="train", step=1, group_id="g", member=0)
LIMITS = SessionLimits(max_turns=8, max_new_tokens=200, max_context=20_000, temperature=1.0, deadline_s=60.0)
SECRET = "the key"
RENDERERS: list[Renderer] = [
    TinyRenderer(Vocabulary(train_tokenizer(["def add(x):\n    return x"], 300))),
    Qwen3Renderer(Vocabulary(chat_tokenizer())),
    MimoRenderer(Vocabulary(chat_tokenizer())),
]
QWEN3 = RENDERERS[1]
BASH = {"type": "object", "properties": {"command": {"type": "string", "description": "the command"}}, "required": ["command"]}
BOTH = (ToolCall("bash", {"command": "a"}), ToolCall("bash", {"command": "b"}))
ANTHROPIC_BASH = {"name": "bash", "description": "Runs it.", "input_schema": BASH}
OPENAI_BASH = {"type": "function", "function": {"name": "bash", "description": "Runs it.", "parameters": BASH}}


@dataclass
class Scripted:
    """Stands in for a model: says `answers` one after the other, and remembers what it was asked and what it said."""

    renderer: Renderer
    answers: list[Answer | list[int]]
    recording: bool = False
    asked: list[GenerateRequest] = field(default_factory=list)
    said: list[Generation] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        [request] = requests
        answer = self.answers[len(self.said)]
        ids = (answer if isinstance(answer, list) else self.renderer.answer(answer))[: request.max_new_tokens]
        self.asked.append(replace(request, input_ids=list(request.input_ids)))
        self.said.append(self._generation(request, ids))
        return [self.said[-1]]

    def _generation(self, request: GenerateRequest, ids: list[int]) -> Generation:
        version = len(self.said)
        read = len(request.input_ids) + len(ids) - 1
        routed = RoutedTokens(0, np.full((read, 1, 2), version, np.int16)) if self.recording else None
        logprobs = [-0.01 * (1 + i) - version for i in range(len(ids))]
        finish = "stop" if ids[-1] in request.stop_token_ids else "length"
        return Generation(ids, logprobs, [WeightSpan(version, 0, len(ids))], finish, routed)  # type: ignore[arg-type]

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)

    async def load_weights(self, directory: Path, version: int) -> None: ...
    async def release_memory(self) -> None: ...
    async def close(self) -> None: ...


def bash(command: str, text: str = "", thinking: str = "") -> Answer:
    return Answer(text, thinking, (ToolCall("bash", {"command": command}),))


def recorder_of(
    engine: Any, limits: SessionLimits = LIMITS, bounds: ProxyLimits | None = None, renderer: Renderer = QWEN3
) -> Recorder:
    return Recorder(KEY, engine, renderer, limits, bounds or ProxyLimits())


@asynccontextmanager
async def open_socket(recorder: Recorder) -> AsyncIterator[str]:
    """Of the served session."""
    server = UnixServer(Endpoint(recorder, SECRET), recorder.bounds.request_bytes, recorder.bounds.connections)
    with tempfile.TemporaryDirectory() as folder:
        await server.start(Path(folder, "s"))
        try:
            yield str(Path(folder, "s"))
        finally:
            await server.close()


def with_socket(recorder: Recorder, use: Callable[[str], Awaitable[object]]) -> None:
    async def main() -> None:
        async with open_socket(recorder) as socket:
            await use(socket)

    asyncio.run(asyncio.wait_for(main(), 60))


def client_of(socket: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {SECRET}"}
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=socket, verify=False), base_url="http://proxy", headers=headers, timeout=30
    )


def with_client(recorder: Recorder, use: Callable[[httpx.AsyncClient], Awaitable[object]]) -> None:
    async def with_one(socket: str) -> None:
        async with client_of(socket) as client:
            await use(client)

    with_socket(recorder, with_one)


Usage = list[tuple[int, int]]


async def openai_agent(client: httpx.AsyncClient) -> Usage:
    """Asks until it is told to call nothing. Returns the tokens read and written for each answer."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "fix it"}]
    usage: Usage = []
    while True:
        reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages, "tools": [OPENAI_BASH]})
        message, used = reply.json()["choices"][0]["message"], reply.json()["usage"]
        usage.append((used["prompt_tokens"], used["completion_tokens"]))
        messages.append(message)
        if not message.get("tool_calls"):
            return usage
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "ran"} for call in message["tool_calls"]]


async def anthropic_agent(client: httpx.AsyncClient) -> Usage:
    """The same by the other API. It has the tokens counted before it asks."""
    parts = [{"type": "text", "text": "fix "}, {"type": "text", "text": "it"}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    usage: Usage = []
    while True:
        body = {"model": "m", "max_tokens": 4096, "system": system, "messages": messages, "tools": [ANTHROPIC_BASH]}
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        reply = (await client.post("/v1/messages", json=body)).json()
        usage.append((reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]))
        assert counted == {"input_tokens": usage[-1][0]}
        messages.append({"role": "assistant", "content": reply["content"]})
        uses = [block for block in reply["content"] if block["type"] == "tool_use"]
        assert reply["stop_reason"] == ("tool_use" if uses else "end_turn")
        if not uses:
            return usage
        ran = {"type": "tool_result", "content": [{"type": "text", "text": "ran"}]}
        messages.append({"role": "user", "content": [ran | {"tool_use_id": use["id"]} for use in uses]})


async def exchange(socket: str, request: bytes) -> bytes:
    """What comes back for these bytes, until the server hangs up."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def chat(client: httpx.AsyncClient, messages: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The message that answers."""
    reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": list(messages), **more})
    assert reply.status_code == 200, reply.text
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return message


def events(text: str) -> list[Any]:
    """The data of server-sent events, but for the mark of OpenAI's end."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
