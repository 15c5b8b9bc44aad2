"""Connections to one server, under httpx. Its own pool looks at all of them with each request, which among a thousand takes
longer than everything else that a turn costs; here a request takes one from the end of a queue."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

FIRST_PAUSE_S = 0.25  # before a connection that was refused is tried again; doubled each time
PART = 1 << 16
WITHOUT_BODY = (204, 304)
Headers = list[tuple[bytes, bytes]]


class Connections(httpx.AsyncBaseTransport):
    """HTTP/1.1 without TLS. A connection that was idle for `keep_s` is not used again; a refused one is tried `retries` more
    times, having carried nothing. Raises httpx.TransportError; deadlines are the caller's."""

    def __init__(self, keep_s: float, retries: int = 0) -> None:
        self._keep_s, self._retries = keep_s, retries
        self._idle: deque[tuple[float, _Connection]] = deque()  # by the time since when they are

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = self._take() or await self._connect(request.url)
        try:
            with _as_transport_errors():
                await connection.send(request)
                status, headers = await connection.head()
            return httpx.Response(status, headers=headers, stream=_Body(self, connection, request.method, status, headers))
        except BaseException:
            connection.close()
            raise

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    def give_back(self, connection: "_Connection") -> None:
        now = asyncio.get_running_loop().time()
        self._idle.append((now, connection))
        while self._idle[0][0] < now - self._keep_s:
            self._idle.popleft()[1].close()

    def _take(self) -> "_Connection | None":
        """The one that was used last."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, connection = self._idle.pop()
            if since >= now - self._keep_s and connection.usable:
                return connection
            connection.close()
        return None

    async def _connect(self, url: httpx.URL) -> "_Connection":
        pause = FIRST_PAUSE_S
        for _ in range(self._retries):
            try:
                return await _Connection.to(url)
            except httpx.ConnectError:
                await asyncio.sleep(pause)
                pause *= 2
        return await _Connection.to(url)


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, url: httpx.URL) -> "_Connection":
        try:
            return cls(*await asyncio.open_connection(url.host, url.port or 80, limit=4 * PART))
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error

    @property
    def usable(self) -> bool:
        """Whether the server has not closed it yet."""
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.close()

    async def send(self, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        head = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        head += [b"%b: %b" % header for header in request.headers.raw]
        chunked = "transfer-encoding" in request.headers
        waiting = b"\r\n".join([*head, b"", b""])
        async for part in request.stream:
            self.writer.write(waiting + (_chunk(part) if chunked else part))
            waiting = b""
            await self.writer.drain()
        self.writer.write(waiting + (b"0\r\n\r\n" if chunked else b""))
        await self.writer.drain()

    async def head(self) -> tuple[int, Headers]:
        """Status and headers of the answer."""
        while True:
            status, *lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
            version, code, *_ = status.split(b" ", 2)
            if not version.startswith(b"HTTP/1."):
                raise ValueError(f"no HTTP/1 answer: {status[:80]!r}")
            if int(code) >= 200:
                return int(code), [_header(line) for line in lines]


class _Body(httpx.AsyncByteStream):
    """What follows the headers. Read to its end, its connection serves again; closed before, it is closed too."""

    def __init__(self, pool: Connections, connection: _Connection, method: str, status: int, headers: Headers) -> None:
        self._pool, self._connection = pool, connection
        self._headers = {name.lower(): value.lower() for name, value in headers}
        self._empty = method == "HEAD" or status in WITHOUT_BODY
        self._over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_transport_errors():
            if self._empty:
                pass
            elif b"chunked" in self._headers.get(b"transfer-encoding", b""):
                async for part in self._chunks():
                    yield part
            elif b"content-length" in self._headers:
                async for part in self._exactly(int(self._headers[b"content-length"])):
                    yield part
            else:
                while part := await self._connection.reader.read(PART):
                    yield part
                return
        self._over = True
        if self._headers.get(b"connection") != b"close":
            self._pool.give_back(self._connection)
        else:
            self._connection.close()

    async def aclose(self) -> None:
        if not self._over:
            self._connection.close()

    async def _chunks(self) -> AsyncIterator[bytes]:
        reader = self._connection.reader
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            async for part in self._exactly(size):
                yield part
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # a trailer

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            part = await self._connection.reader.read(min(size, PART))
            if not part:
                raise EOFError(f"{size} bytes before the end of the answer")
            size -= len(part)
            yield part


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon:
        raise ValueError(f"no header: {line[:80]!r}")
    return name, value.strip()


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part) if part else b""


@contextmanager
def _as_transport_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
    except (EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise httpx.RemoteProtocolError(str(error)) from error
