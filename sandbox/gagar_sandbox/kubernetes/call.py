"""A conversation with `gagar-init` in a container, over the socket of an exec."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from gagar_sandbox.inside.frames import pack, unpack
from gagar_sandbox.kubernetes.api import Api
from gagar_sandbox.kubernetes.manifest import INIT

STDIN, STDOUT, STDERR, STATUS = range(4)
PIECE = 1 << 15


class CallLost(Exception):
    """The connection to a container broke, or what came over it was no answer: nothing is known of what was asked."""


class CallFailed(CallLost):
    """The program in the container could not be run, or ended before its time. `killed`: by a signal, as any command can send."""

    def __init__(self, message: str, killed: bool) -> None:
        super().__init__(message)
        self.killed = killed


class Call:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, reply_bytes: int) -> None:
        self._socket = socket
        self._reply_bytes = reply_bytes
        self._buffer = bytearray()
        self._said = bytearray()
        self._status: bytes | None = None

    async def send(self, data: bytes) -> None:
        """Frames, and what else may come between them. Raises CallLost."""
        view = memoryview(data)
        try:
            for at in range(0, len(view), PIECE):
                await self._socket.send_bytes(bytes([STDIN]) + view[at : at + PIECE])
        except (aiohttp.ClientError, ConnectionError) as error:
            raise CallLost(f"the connection broke: {error}") from error

    async def receive(self) -> list[bytes]:
        """The fields of the next frame. Raises CallLost."""
        size = int.from_bytes(await self._exactly(4), "big")
        if size > self._reply_bytes:
            raise CallLost(f"an answer of {size} bytes where {self._reply_bytes} are the most")
        try:
            return unpack(await self._exactly(size))
        except ValueError as error:
            raise CallLost(f"an answer that is none: {error}") from error

    async def answer(self, asked: str) -> bytes:
        """Contents or digest in answer to a request that is answered with those. Raises OSError as the container has it, with
        `asked` for a name, or CallLost."""
        match await self.receive():
            case [b"ok", data]:
                return data
            case [b"error", code, reason] if code.isdigit() and len(code) < 5:
                raise OSError(int(code), reason.decode(errors="replace"), asked)
        raise CallLost("an answer that is none")

    async def end(self) -> None:
        """The program may go. Nothing is awaited of it: whoever had its answer has all that there is."""
        with contextlib.suppress(CallLost):
            await self.send(pack(b"end"))

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if self._status is not None:
                raise self._ended_early(self._status)
            await self._message()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _ended_early(self, status: bytes) -> CallFailed:
        told = json.loads(status)
        causes = (told.get("details") or {}).get("causes") or []
        killed = any(cause.get("reason") == "ExitCode" and int(cause["message"]) > 128 for cause in causes)
        said = f"{told.get('message', '')} {self._said.decode(errors='replace')}"
        return CallFailed(f"the program in the pod ended: {said}".strip(), killed)

    async def _message(self) -> None:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise CallLost(f"the connection was closed without a status ({message.type.name}, {message.extra or message.data})")
        channel, data = message.data[:1], message.data[1:]
        if channel == bytes([STDOUT]):
            self._buffer += data
        elif channel == bytes([STDERR]):
            self._said += data[: 1000 - len(self._said)]
        elif channel == bytes([STATUS]):
            self._status = data


@asynccontextmanager
async def call(api: Api, pod: str, container: str, reply_bytes: int, timeout_s: float) -> AsyncIterator[Call]:
    """A conversation of `timeout_s` at most. Raises ApiError where there is none, CallLost, and TimeoutError."""
    async with asyncio.timeout(timeout_s), api.exec(pod, container, [INIT, "call"]) as socket:
        conversation = Call(socket, reply_bytes)
        yield conversation
        await conversation.end()
