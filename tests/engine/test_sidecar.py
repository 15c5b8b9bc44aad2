"""The sidecar before a server that says what it is told to, over real sockets; before SGLang's own in `test_sglang_serve.py`."""

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import pytest

from gagar_mcore.engine.http import ConnectionLost, Endpoint, HttpClient
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.sglang_wire import read_meta, read_routed
from gagar_mcore.engine.sidecar import forward
from gagar_mcore.engine.sidecar.forward import Forwarder
from gagar_mcore.engine.sidecar.strip import Stripper
from gagar_mcore.models.presets import preset
from gagar_mcore.records.expert_index import ExpertIndex, StoredRows
from gagar_mcore.records.expert_store import ExpertStore

MODEL = preset("tiny")
TOLD = np.random.default_rng(0).integers(0, MODEL.num_experts, (9, MODEL.num_layers, MODEL.top_k)).astype(np.int32)
ANSWER = {"output_ids": [1, 2], "meta_info": {"routed_experts": base64.b64encode(TOLD.tobytes()).decode(), "cached_tokens": 3}}


def reply(body, content_type="application/json", status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def beside(tmp_path: Path, said, body):
    """Run `body(client, seen)`: client asks the sidecar, behind which a server reads requests into `seen` and says `said`."""

    async def scenario():
        seen, gone = [], asyncio.Event()

        async def serve(reader, writer):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line), 0)
                seen.append((head, await reader.readexactly(length)))
                if said == "nothing":
                    await reader.read()
                    gone.set()
                elif said is not None:
                    writer.write(said)
                    await writer.drain()
            finally:
                writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            sidecar = Forwarder(upstream, Stripper(MODEL, ExpertStore(tmp_path / "experts")))
            client = HttpClient(Endpoint(f"http://127.0.0.1:{await sidecar.start('127.0.0.1', 0)}", "user", "admin"))
            try:
                return await asyncio.wait_for(body(client, seen, gone), 30)
            finally:
                await client.close()
                await sidecar.close()

    return asyncio.run(scenario())


def check_stored(meta, tmp_path):
    rows = read_routed(meta["routed_experts"], MODEL)
    assert isinstance(rows, StoredRows) and rows.itemsize == 1 and Path(rows.file).parent == tmp_path / "experts"
    np.testing.assert_array_equal(ExpertIndex.build(9, [(0, rows)])[:], TOLD[:, np.array(MODEL.moe_layers)])


def test_experts_are_stored_and_all_else_arrives_as_it_was_said(tmp_path):
    async def body(client, seen, gone):
        return await client.call("/generate", 10.0, {"rid": "a"}), seen

    answer, [(head, sent)] = beside(tmp_path, reply(json.dumps(ANSWER)), body)
    assert answer["output_ids"] == [1, 2] and answer["meta_info"]["cached_tokens"] == 3
    assert json.loads(sent) == {"rid": "a"}
    assert head.startswith(b"POST /generate ") and b"bearer user" in head.lower()
    check_stored(answer["meta_info"], tmp_path)


def test_the_parts_of_an_answer_arrive_as_parts(tmp_path):
    first = {"output_ids": [1], "meta_info": {"finish_reason": None}}
    events = f"data: {json.dumps(first)}\n\ndata: {json.dumps(ANSWER)}\n\ndata: [DONE]\n\n"

    async def body(client, seen, gone):
        parts = []
        await client.stream("/generate", 10.0, {}, parts.append)
        return parts

    one, other = beside(tmp_path, reply(events, "text/event-stream"), body)
    assert one == first
    check_stored(other["meta_info"], tmp_path)


def test_experts_that_cannot_be_stored_are_an_error_that_says_why(tmp_path, monkeypatch):
    def full(self, experts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ExpertStore, "append", full)

    async def body(client, seen, gone):
        answer = await client.call("/generate", 10.0, {})
        with pytest.raises(EngineError, match=r"its experts are not stored: .*No space left on device"):
            read_meta(answer)
        return True

    assert beside(tmp_path, reply(json.dumps(ANSWER)), body)


def test_nobody_holds_the_sidecar_for_longer_than_it_says(tmp_path, monkeypatch):
    """A head that does not come, a body that trickles, an answer that does not come, a client that sends on and on."""
    monkeypatch.setattr(forward, "IDLE_S", 0.3)
    monkeypatch.setattr(forward, "LONGEST_S", 0.3)
    head = b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    async def trickle(port, first, more):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)

        async def send():
            while True:
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(send())
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.close()

    async def body(client, seen, gone):
        port = int(client.endpoint.url.rpartition(":")[2])
        held = [(b"", b"P"), (head % 1000, b" "), (head % 0, b""), (head % 0, b" " * forward.MOST_AHEAD)]
        return await asyncio.gather(*(trickle(port, first, more) for first, more in held))

    assert beside(tmp_path, "nothing", body) == [b""] * 4


def test_other_answers_and_refusals_pass(tmp_path):
    async def body(client, seen, gone):
        with pytest.raises(EngineError, match="/model_info: 400: no routed_experts here"):
            await client.call("/model_info", 10.0)
        return seen

    [(head, _)] = beside(tmp_path, reply("no routed_experts here", "text/plain", "400 Bad Request"), body)
    assert head.startswith(b"GET /model_info ")


def test_an_answer_that_is_lost_behind_the_sidecar_is_lost_before_it(tmp_path):
    async def body(client, seen, gone):
        with pytest.raises(ConnectionLost):
            await client.call("/generate", 10.0, {})
        return await client.healthy(10.0)

    assert not beside(tmp_path, None, body)


def test_who_hangs_up_before_the_sidecar_has_hung_up_behind_it(tmp_path):
    async def body(client, seen, gone):
        call = asyncio.create_task(client.call("/generate", 20.0, {}))
        while not seen:
            await asyncio.sleep(0.01)
        call.cancel()
        await gone.wait()
        return True

    assert beside(tmp_path, "nothing", body)


def test_a_connection_serves_one_request_after_the_other(tmp_path):
    async def body(client, seen, gone):
        return [await client.call("/model_info", 10.0) for _ in range(3)]

    assert beside(tmp_path, reply('{"a": 1}'), body) == [{"a": 1}] * 3
