"""HTTP/1.1 on a unix socket: requests of bounded size, one handler, connections that end with the server."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import h11

from gagar_mcore.waiting import unless

CHUNK = 1 << 18
DISCARDED = 8  # times the largest body
IDLE_S = 600.0  # a connection says nothing for so long at most


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`path` without its query; `headers` by their names in lower case. `body` is None where it was too large to be kept; `size`:
    bytes of it that were read."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    size: int


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    content_type: str = "application/json"


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class UnixServer:
    """Answers on the socket at `path` until it is closed. A client that hangs up cancels its request."""

    def __init__(self, handler: Handler, max_body: int, max_connections: int) -> None:
        self._handler = handler
        self._max_body = max_body
        self._max_connections = max_connections
        self._connections: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._server: asyncio.Server | None = None

    async def start(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._accept, path, limit=CHUNK)
        os.chmod(path, 0o600)

    async def close(self) -> None:
        """Raises what the handler has raised: it has to answer every request."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._failures:
            raise self._failures[0]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._max_connections:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, self._max_body)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                while (request := await connection.request()) is not None:
                    response = await unless(connection.hang_up(), self._handler(request))
                    if response is None or not await connection.respond(response):
                        break
        finally:
            writer.close()


class Connection:
    """One client, request by request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_body: int) -> None:
        self._reader = reader
        self._writer = writer
        self._max_body = max_body
        self._http = h11.Connection(h11.SERVER)
        self._head_only = False

    async def request(self) -> HttpRequest | None:
        """The next request; None where none comes, or what comes is none. Raises TimeoutError, ConnectionError."""
        try:
            head = await self._event()
            if not isinstance(head, h11.Request):
                return None
            self._head_only = head.method == b"HEAD"
            body, size = await self._body()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path = head.target.decode("latin-1").partition("?")[0]
        return HttpRequest(head.method.decode("latin-1"), path, headers, body, size)

    async def _body(self) -> tuple[bytes | None, int]:
        """And its size. None where it is too large; it is read all the same, up to a bound, for the client to read the answer."""
        body, size = bytearray(), 0
        while size <= DISCARDED * self._max_body and isinstance(event := await self._event(), h11.Data):
            size += len(event.data)
            body += event.data if size <= self._max_body else b""
        return bytes(body) if size <= self._max_body else None, size

    async def respond(self, response: HttpResponse) -> bool:
        """Whether the connection can take another request. Raises ConnectionError."""
        keep = self._http.their_state is h11.DONE
        headers = [("content-type", response.content_type), ("content-length", str(len(response.body)))]
        headers += [] if keep else [("connection", "close")]
        self._writer.write(self._http.send(h11.Response(status_code=response.status, headers=headers)) or b"")
        self._writer.write(self._http.send(h11.Data(data=b"" if self._head_only else response.body)) or b"")
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        await self._writer.drain()
        if not keep or self._http.our_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            async with asyncio.timeout(IDLE_S):
                data = await self._reader.read(CHUNK)
            self._http.receive_data(data)
        return event

    async def hang_up(self) -> None:
        """Until the client closes its side. What it sends meanwhile is kept for later, up to one chunk."""
        data = await self._reader.read(CHUNK)
        self._http.receive_data(data)
        if data:
            await asyncio.get_running_loop().create_future()

    async def _refuse(self, status: int) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-length", "0"), ("connection", "close")]
            self._writer.write(self._http.send(h11.Response(status_code=status, headers=headers)) or b"")
            self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
            await self._writer.drain()
