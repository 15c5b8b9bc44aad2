"""Requests to one server, each with a deadline, and all of them over at once when the server is gone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx

from gagar_mcore.engine.connections import Connections
from gagar_mcore.engine.protocol import EngineError

PAUSE_S = 0.5  # between two questions after health
KEEP_ALIVE_S = 2.0  # SGLang closes a connection that is idle for 5 s; one that it is about to close must not be used
EVENT, LAST_EVENT = "data: ", "data: [DONE]"
CONNECT_RETRIES = 2  # a connection that was refused has carried nothing
AGAIN_S, LONGEST_AGAIN_S = 1.0, 30.0  # before a call is worth another try, where the server says when, and at most
UNAVAILABLE = (429, 502, 503, 504)  # for now, be it the server or what stands before it


class ConnectionLost(EngineError):
    """The server closed a connection, took none, or has no time. What was asked may have been done. again_s: before it is worth
    another try."""

    def __init__(self, reason: str, again_s: float = AGAIN_S) -> None:
        super().__init__(reason)
        self.again_s = again_s


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers. `key` opens generation; `admin_key` weights, memory and running requests."""

    url: str
    key: str = field(repr=False)
    admin_key: str = field(repr=False)


class HttpClient:
    """`failure` says why the server is gone; every call raises it from then on."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.failure: str | None = None
        self._open: set[asyncio.Timeout] = set()
        transport = Connections(KEEP_ALIVE_S, CONNECT_RETRIES)
        # Deadlines are those of the calls. The environment's proxies would see the keys.
        self._http = httpx.AsyncClient(base_url=endpoint.url, transport=transport, timeout=None, trust_env=False)

    async def call(self, path: str, deadline_s: float, body: dict[str, Any] | None = None, admin: bool = False) -> dict[str, Any]:
        """What the server answers to `body`, or to a question without one; nothing where that is no JSON. Raises EngineError
        where it refuses, is gone, or is late."""
        key = self.endpoint.admin_key if admin else self.endpoint.key
        headers = {"Authorization": f"Bearer {key}"}
        response = await self._send(deadline_s, "GET" if body is None else "POST", path, json=body, headers=headers)
        if response.is_error:
            self._refuse(response, path)
        return self._read(response.text, path) if "json" in response.headers.get("content-type", "") else {}

    async def stream(self, path: str, deadline_s: float, body: dict[str, Any], heard: Callable[[dict[str, Any]], None]) -> None:
        """The parts of an answer (server-sent events), each told to `heard` as it comes. Raises what `call` does."""
        headers = {"Authorization": f"Bearer {self.endpoint.key}"}
        async with self._within(deadline_s, path), self._http.stream("POST", path, json=body, headers=headers) as response:
            if response.is_error:
                await response.aread()
                self._refuse(response, path)
            async for line in response.aiter_lines():
                if line.startswith(EVENT) and line != LAST_EVENT:
                    part = self._read(line.removeprefix(EVENT), path)
                    if "error" in part:
                        raise EngineError(f"{self.endpoint.url}{path}: {part['error']}")
                    heard(part)

    async def healthy(self, deadline_s: float) -> bool:
        try:
            return (await self._send(deadline_s, "GET", "/health")).is_success
        except EngineError:
            return False

    async def wait_healthy(self, deadline_s: float) -> None:
        """Until the server gives a sign of health. Raises EngineError where none comes in time."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.failure is None and not await self.healthy(deadline_s):
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError as error:
            raise EngineError(f"{self.endpoint.url} gave no sign of health within {deadline_s:g} s") from error
        if self.failure is not None:
            raise EngineError(self.failure)

    def fail(self, reason: str) -> None:
        """The first reason stays; every pending call raises it."""
        self.failure = self.failure or reason
        for scope in self._open:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        self.fail("the engine is closed")
        await self._http.aclose()

    async def _send(self, deadline_s: float, method: str, path: str, **arguments: Any) -> httpx.Response:
        async with self._within(deadline_s, path):
            return await self._http.request(method, path, **arguments)

    def _refuse(self, response: httpx.Response, path: str) -> NoReturn:
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self.fail(f"{self.endpoint.url}{path}: 401: the server does not know the key; another one has taken its place")
            raise EngineError(self.failure)
        reason = f"{self.endpoint.url}{path}: {response.status_code}: {response.text[:500]}"
        if response.status_code in UNAVAILABLE:
            told = response.headers.get("retry-after", "")
            raise ConnectionLost(reason, min(float(told), LONGEST_AGAIN_S) if told.isdecimal() else AGAIN_S)
        raise EngineError(reason)

    def _read(self, text: str, path: str) -> dict[str, Any]:
        """Of an object, or of null."""
        try:
            answer: dict[str, Any] | None = json.loads(text)
        except ValueError as error:
            raise EngineError(f"{self.endpoint.url}{path}: no JSON: {text[:200]!r}") from error
        if not isinstance(answer, dict | None):
            raise EngineError(f"{self.endpoint.url}{path}: no answer: {text[:200]!r}")
        return answer or {}

    @asynccontextmanager
    async def _within(self, deadline_s: float, path: str) -> AsyncIterator[None]:
        if self.failure is not None:
            raise EngineError(self.failure)
        scope = asyncio.timeout(deadline_s)
        try:
            async with scope:
                self._open.add(scope)
                yield
        except TimeoutError as error:
            raise EngineError(self.failure or f"{self.endpoint.url}{path}: no answer within {deadline_s:g} s") from error
        except httpx.RequestError as error:
            raise ConnectionLost(self.failure or f"{self.endpoint.url}{path}: {type(error).__name__} {error}") from error
        finally:
            self._open.discard(scope)


async def wait_healthy(endpoint: Endpoint, deadline_s: float) -> None:
    """Raises EngineError where the server gives no sign of health in time."""
    client = HttpClient(endpoint)
    try:
        await client.wait_healthy(deadline_s)
    finally:
        await client.close()
