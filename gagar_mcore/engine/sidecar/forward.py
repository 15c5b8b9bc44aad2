"""A server that hands requests on to another, and changes what comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import h11
import httpx

from gagar_mcore.engine.connections import Connections
from gagar_mcore.engine.sidecar.strip import Stripper
from gagar_mcore.waiting import unless

CHUNK = 1 << 16
MOST_BYTES = 1 << 28  # of a request; weights come as files
IDLE_S = 60.0  # a connection between two requests; then for a whole one to come
LONGEST_S = 7200.0  # for an answer to be made and taken: beyond any deadline of those who ask
MOST_AHEAD = 1 << 20  # bytes that come before an answer is over
KEEP_S = 2.0  # SGLang closes a connection that is idle for 5 s
OF_THE_CONNECTION = (
    *("connection", "keep-alive", "host"),
    *("transfer-encoding", "content-length", "content-encoding", "accept-encoding"),
)


class Forwarder:
    """Answers of `/generate` go through `stripper`, all others as they are. A client that hangs up ends its request upstream; a
    request that is lost upstream ends the client's connection without an answer."""

    def __init__(self, upstream: str, stripper: Stripper) -> None:
        self._stripper = stripper
        self._http = httpx.AsyncClient(base_url=upstream, transport=Connections(KEEP_S), timeout=None, trust_env=False)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, a free one for 0. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._http.aclose()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(reader, writer)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError, h11.ProtocolError, httpx.TransportError):
                while (request := await client.request()) is not None:
                    async with asyncio.timeout(LONGEST_S):
                        if not await unless(client.hang_up(), self._forward(client, *request)):
                            break
        finally:
            writer.close()

    async def _forward(self, client: "_Client", head: h11.Request, body: bytes) -> bool:
        """Whether the connection can take another request."""
        headers = [(name, value) for name, value in head.headers if name.decode() not in OF_THE_CONNECTION]
        method, path = head.method.decode(), head.target.decode()
        asked = self._http.build_request(method, path, headers=headers, content=body)
        answer = await self._http.send(asked, stream=True)
        try:
            return await client.respond(answer, self._parts(path, answer))
        finally:
            await answer.aclose()

    async def _parts(self, path: str, answer: httpx.Response) -> AsyncIterator[bytes]:
        if not path.startswith("/generate"):
            async for part in answer.aiter_bytes():
                yield part
        elif answer.headers.get("content-type", "").startswith("text/event-stream"):
            async for line in answer.aiter_lines():
                yield await self._stripper.event(line.encode()) + b"\n"
        else:
            yield await self._stripper.answer(await answer.aread())


class _Client:
    """One connection, request by request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)

    async def request(self) -> tuple[h11.Request, bytes] | None:
        """Head and body; None where no other comes. Raises TimeoutError, ConnectionError, ProtocolError."""
        async with asyncio.timeout(IDLE_S):
            head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        body = bytearray()
        async with asyncio.timeout(IDLE_S):
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
                if len(body) > MOST_BYTES:
                    return None
        return head, bytes(body)

    async def respond(self, answer: httpx.Response, parts: AsyncIterator[bytes]) -> bool:
        """In chunks. Whether the connection can take another request."""
        headers = [(name, value) for name, value in answer.headers.raw if name.decode().lower() not in OF_THE_CONNECTION]
        await self._send(h11.Response(status_code=answer.status_code, headers=headers))
        async for part in parts:
            await self._send(h11.Data(data=part))
        await self._send(h11.EndOfMessage())
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(CHUNK))
        return event

    async def hang_up(self) -> None:
        """Until the client closes its side, or sends too much; what it sends meanwhile is kept for its next request."""
        ahead = 0
        while ahead < MOST_AHEAD and (data := await self._reader.read(CHUNK)):
            self._http.receive_data(data)
            ahead += len(data)
