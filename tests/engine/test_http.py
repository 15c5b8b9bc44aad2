import asyncio

import pytest

from gagar_mcore.engine.http import ConnectionLost, Endpoint, HttpClient
from gagar_mcore.engine.protocol import EngineError

SILENCE = b""


def answer(status, body):
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode()


def talk(reply, body):
    """Run `body(client, seen)` beside a server that reads one request a connection into `seen` and says `reply`; None hangs up,
    SILENCE says nothing."""

    async def scenario():
        seen = []

        async def serve(reader, writer):
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            if reply == SILENCE:
                await asyncio.sleep(60)
            writer.write(reply or b"")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            client = HttpClient(Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "user", "admin"))
            try:
                return await asyncio.wait_for(body(client, seen), 30)
            finally:
                await client.close()

    return asyncio.run(scenario())


def test_an_answer_is_what_the_server_says_to_the_key_that_it_asks_for():
    async def body(client, seen):
        return await client.call("/a", 10.0, {"x": 1}), await client.call("/b", 10.0, admin=True), seen

    *answers, seen = talk(answer("200 OK", '{"y": 2}'), body)
    assert answers == [{"y": 2}] * 2
    assert seen[0].startswith(b"POST /a ") and b"Bearer user\r\n" in seen[0]
    assert seen[1].startswith(b"GET /b ") and b"Bearer admin\r\n" in seen[1]


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (answer("400 Bad Request", "too long"), EngineError, "/a: 400: too long"),
        (None, ConnectionLost, "/a: RemoteProtocolError"),
        (SILENCE, EngineError, r"/a: no answer within 0\.2 s"),
    ],
)
def test_a_refusal_a_lost_connection_and_silence_are_errors(reply, error, message):
    async def body(client, seen):
        with pytest.raises(error, match=message):
            await client.call("/a", 0.2 if reply == SILENCE else 10.0, {})
        return await client.healthy(0.2)

    assert not talk(reply, body)


def test_a_request_whose_connection_was_lost_is_not_sent_again():
    async def body(client, seen):
        with pytest.raises(ConnectionLost):
            await client.call("/a", 10.0, {})
        return len(seen)

    assert talk(None, body) == 1


def test_what_is_pending_fails_with_the_server_and_so_does_what_comes_later():
    async def body(client, seen):
        pending = [asyncio.create_task(client.call("/a", 60.0, {})) for _ in range(3)]
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        client.fail("the server is gone")
        client.fail("another reason")
        failures = await asyncio.gather(*pending, client.call("/b", 60.0), return_exceptions=True)
        return [(type(failure), str(failure)) for failure in failures]

    assert talk(SILENCE, body) == [(EngineError, "the server is gone")] * 4


def test_a_call_that_is_cancelled_from_outside_is_cancelled():
    async def body(client, seen):
        call = asyncio.create_task(client.call("/a", 60.0, {}))
        while not seen:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return client.failure

    assert talk(SILENCE, body) is None


def test_keys_are_not_shown():
    assert "user" not in repr(Endpoint("http://127.0.0.1:1", "user", "admin"))


def test_a_server_that_does_not_know_the_key_is_another_one():
    async def body(client, seen):
        with pytest.raises(EngineError, match="/a: 401: the server does not know the key"):
            await client.call("/a", 10.0, {})
        return client.failure

    assert "/a: 401" in talk(answer("401 Unauthorized", ""), body)


def test_health_is_waited_for_until_its_deadline():
    async def body(client, seen):
        with pytest.raises(EngineError, match=r"gave no sign of health within 1\.2 s"):
            await client.wait_healthy(1.2)
        return len(seen)

    assert talk(answer("503 Service Unavailable", ""), body) > 1
