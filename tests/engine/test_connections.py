import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from gagar_mcore.engine.connections import Connections

Talk = Callable[[httpx.AsyncClient], Awaitable[Any]]


def served(replies: list[bytes], use: Talk, keep_s: float = 2.0, hang_up: bool = False) -> tuple[Any, list[list[bytes]]]:
    """What `use` returns beside a server that says `replies`, one a request; and the requests of each connection."""
    seen: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append([])
        try:
            while replies:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readuntil(b"0\r\n\r\n") if b"chunked" in head else b""
                seen[-1].append(head.split(b"\r\n")[0] + body)
                writer.write(replies.pop(0))
                if hang_up:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def main() -> Any:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, transport=Connections(keep_s), timeout=None, trust_env=False) as client:
                return await use(client)

    return asyncio.run(asyncio.wait_for(main(), 30)), seen


def whole(body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", body])


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
UNTIL_THE_END = b"HTTP/1.0 200 OK\r\n\r\nhello world"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + whole(b"hello world")


@pytest.mark.parametrize("reply", [whole(b"hello world"), CHUNKED, CONTINUED], ids=["length", "chunks", "continue"])
def test_a_connection_serves_one_request_after_the_other(reply: bytes) -> None:
    async def use(client: httpx.AsyncClient) -> list[str]:
        return [(await client.get(f"/{index}")).text for index in range(3)]

    texts, seen = served([reply] * 3, use)
    assert texts == ["hello world"] * 3
    assert seen == [[b"GET /%d HTTP/1.1" % index for index in range(3)]]


def test_requests_at_once_have_a_connection_each_and_the_last_used_serves_next() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/a") as first, client.stream("GET", "/b") as second:
            await first.aread()
            await second.aread()
        await client.get("/c")

    _, seen = served([whole(b"")] * 3, use)
    assert sorted(map(len, seen)) == [1, 2]


@pytest.mark.parametrize("reply", [whole(b"hello world", b"Connection: close"), UNTIL_THE_END], ids=["said", "meant"])
def test_a_connection_that_the_server_closes_is_not_used_again(reply: bytes) -> None:
    async def use(client: httpx.AsyncClient) -> list[str]:
        return [(await client.get("/")).text for _ in range(2)]

    texts, seen = served([reply] * 2, use, hang_up=True)
    assert texts == ["hello world"] * 2 and len(seen) == 2


def test_an_idle_connection_grows_old() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for _ in range(2):
            await client.get("/")
            await asyncio.sleep(0.02)

    assert len(served([whole(b"")] * 2, use, keep_s=0.001)[1]) == 2


def test_an_answer_that_is_not_read_to_its_end_costs_the_connection() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/") as response:
            assert response.status_code == 200
        await client.get("/")

    assert len(served([whole(b"x" * 100), whole(b"")], use)[1]) == 2


def test_a_body_of_unknown_length_is_sent_in_chunks() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"hello"
        yield b" world"

    async def use(client: httpx.AsyncClient) -> int:
        return (await client.post("/", content=parts())).status_code

    status, seen = served([whole(b"")], use)
    assert (status, seen) == (200, [[b"POST / HTTP/1.1" + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"]])


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_no_answer_is_a_transport_error(reply: bytes) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")

    served([reply], use, hang_up=True)


def test_a_refused_connection_is_tried_again() -> None:
    async def main() -> None:
        async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(transport=Connections(1.0, retries=1), timeout=None) as client:
            started = asyncio.get_running_loop().time()
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{port}/")
            assert asyncio.get_running_loop().time() >= started + 0.2

    asyncio.run(asyncio.wait_for(main(), 30))
