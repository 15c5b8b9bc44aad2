"""A server that says what a test has it say, over a real socket: what SGLang's own cannot be brought to say."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.engine.attach import AttachedServer
from gagar_mcore.engine.http import Endpoint
from gagar_mcore.engine.protocol import GenerateRequest
from gagar_mcore.engine.sglang import SGLangEngine
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.models.presets import preset

MODEL = preset("tiny")
WEIGHTS = shipped_checkpoint("tiny-mimo-v2")
SERVING = Serving("policy", WEIGHTS, 0, MODEL, 64)
Say = Callable[[str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


def reply(content: Any, status: str = "200 OK", *headers: str, kind: str = "application/json") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def meta(count: int = 4, version: int = 0, rows: int | None = None, **changes: Any) -> dict[str, Any]:
    """Of an answer of `count` tokens; rows: of experts."""
    told = {
        "output_token_logprobs": [[-0.5, 7 + number, None] for number in range(count)],
        "weight_version": str(version),
        "weight_versions": [{"version": str(version), "start": 0, "end": count}],
        "finish_reason": {"type": "length"},
    }
    if rows is not None:
        told["routed_experts"] = base64.b64encode(np.zeros((rows, MODEL.num_layers, MODEL.top_k), np.int32).tobytes()).decode()
    return told | changes


def request(session: str = "s", new: int = 4, ids: tuple[int, ...] = (5, 6, 7)) -> GenerateRequest:
    return GenerateRequest(session, list(ids), new, 1.0, 7, ())


def section(**changes: Any) -> EngineSection:
    server = ServerSection(**{"parts_of": 0, "health_deadline_s": 5.0, **changes.pop("server", {})})
    return EngineSection(**{"kind": "sglang", "deadline_s": 20.0, "start_timeout_s": 10.0, "server": server, **changes})


class Scripted:
    """asked: path and body of every request but those after its health, which is good where `healthy`."""

    def __init__(self, say: Say) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.healthy, self.health_asked = True, 0
        self._say = say

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    async def until_asked(self, path: str) -> dict[str, Any]:
        """The body of the first such request."""
        while path not in self.paths:
            await asyncio.sleep(0.01)
        return next(body for asked, body in self.asked if asked == path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0].split(b":")[1])) if sizes else b""
            path = head.split(b" ")[1].decode()
            if path == "/health":
                self.health_asked += 1
                writer.write(reply({}, "200 OK" if self.healthy else "503 Service Unavailable"))
            else:
                self.asked.append((path, json.loads(body or b"{}")))
                await self._say(path, self.asked[-1][1], writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(say: Say, serving: Serving = SERVING, sections: EngineSection | None = None):
    """The server and an engine on it."""
    server = Scripted(say)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        endpoint = Endpoint(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "user", "admin")
        engine = SGLangEngine(AttachedServer(endpoint), serving, sections or section())
        try:
            yield server, engine
        finally:
            await engine.close()


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 50))
