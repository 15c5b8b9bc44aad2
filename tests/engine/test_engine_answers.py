"""What becomes of answers that are none, and of servers that hang, hurry or are changed by others."""

import asyncio
import json
from dataclasses import replace

import pytest
from scripted import MODEL, SERVING, WEIGHTS, meta, reply, request, run, scripted, section

from gagar_mcore.engine import http
from gagar_mcore.engine.fleet import Fleet
from gagar_mcore.engine.http import ConnectionLost
from gagar_mcore.engine.partial import EngineLost
from gagar_mcore.engine.protocol import EngineError

NOT_A_NUMBER = json.dumps({"meta_info": meta(output_token_logprobs=[[float("nan"), 7, None]] * 4)}).encode()
SPANS = [{"version": "0", "start": 0, "end": 3}]
WITH_EXPERTS = replace(SERVING, record_experts=True)


def saying(*replies):
    """One after the other to `/generate`, the last to all that come later."""
    left = list(replies)

    async def say(path, body, writer):
        writer.write((left.pop(0) if len(left) > 1 else left[0]) if path == "/generate" else reply({}))

    return say


def answer(**changes):
    return reply({"meta_info": meta(**changes)})


async def through_a_fleet(engine):
    async def start(weights, version):
        return engine

    fleet = Fleet(lambda: {"one": start}, WEIGHTS, 0, room=4, patience_s=5.0)
    await fleet.start()
    return await fleet.generate([request()])


def parts(*metas):
    events = [b"data: %b\n\n" % (one if isinstance(one, bytes) else json.dumps({"meta_info": one}).encode()) for one in metas]
    return reply(b"".join(events) + b"data: [DONE]\n\n", kind="text/event-stream")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (reply(b"<html>"), "/generate: no JSON: '<html>'"),
        (reply(b"[1]"), r"/generate: no answer: '\[1\]'"),
        (reply({}), "no answer: {}"),
        (reply(b"hello", kind="text/plain"), "no answer: {}"),
        (reply({"meta_info": {}}), "no answer that can be read: KeyError 'weight_versions'"),
        (answer(output_token_logprobs=[[None, 7, None]] * 4), "no answer that can be read: TypeError"),
        (reply(NOT_A_NUMBER), "a log-prob is not finite"),
        (answer(count=5), "5 tokens where 1 to 4 were asked for"),
        (answer(count=0), "0 tokens where 1 to 4 were asked for"),
        (answer(output_token_logprobs=[[-1.0, MODEL.vocab_size, None]] * 4), r"ids beyond 0\.\.511"),
        (answer(weight_versions=SPANS), "weight versions of other tokens than its 4"),
        (answer(finish_reason={"type": "tired"}), "finish reason 'tired'"),
        (answer(weight_versions=[{"version": "default", "start": 0, "end": 4}]), "can be read: ValueError .*default"),
    ],
)
def test_what_is_no_answer_is_an_error_that_says_so_and_the_next_call_is_answered(said, message):
    async def scenario():
        async with scripted(saying(said, answer())) as (_, engine):
            with pytest.raises(EngineError, match=message):
                await engine.generate([request()])
            return await engine.generate([request()]), engine.alive

    [generation], alive = run(scenario())
    assert generation.token_ids == [7, 8, 9, 10] and alive


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (answer(rows=5), "experts of 5 tokens where 6 had passed"),
        (answer(), "experts of 0 tokens where 6 had passed"),
        (answer(routed_experts="AAAA"), "no answer that can be read: ValueError"),
    ],
)
def test_experts_of_other_tokens_are_refused(said, message):
    async def scenario():
        async with scripted(saying(said, answer(rows=6)), WITH_EXPERTS) as (_, engine):
            with pytest.raises(EngineError, match=message):
                await engine.generate([request()])
            return await engine.generate([request()])

    assert run(scenario())[0].routed.experts.shape[0] == 6


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (parts(b"{"), "/generate: no JSON"),
        (parts(b'{"error": {"message": "the queue is full"}}'), "the queue is full"),
        (parts(meta(2, finish_reason=None, output_token_logprobs=[[None, 7, None]])), "no answer that can be read: TypeError"),
        (parts(meta(2, finish_reason=None), meta(2)), "weight versions of other tokens than its 4"),
    ],
)
def test_so_are_parts_of_an_answer_and_the_request_is_aborted_where_it_may_go_on(said, message):
    async def scenario():
        async with scripted(saying(said), sections=section(server={"parts_of": 2})) as (_, engine):
            with pytest.raises(EngineError, match=message) as raised:
                await engine.generate([request()])
            return raised.value, engine.alive

    error, alive = run(scenario())
    assert not isinstance(error, EngineLost) and alive


@pytest.mark.parametrize("version", [6, 4])
def test_a_server_with_weights_that_the_run_has_not_loaded_there_is_let_go(version):
    async def scenario():
        async with scripted(saying(answer(version=version)), replace(SERVING, version=5)) as (_, engine):
            with pytest.raises(EngineError, match=f"answers with weights {version}, which this run has not loaded there"):
                await engine.generate([request()])
            return engine.alive

    assert not run(scenario())


@pytest.mark.parametrize("headers", [(), ("Retry-After: 0",), ("Retry-After: Mon, 30 Nov 2026 10:00:00 GMT",)])
def test_a_server_that_is_unavailable_for_now_is_asked_again(headers, monkeypatch):
    monkeypatch.setattr(http, "AGAIN_S", 0.01)
    busy = reply({}, "503 Service Unavailable", *headers)

    async def scenario():
        async with scripted(saying(busy, busy, answer())) as (server, engine):
            return await through_a_fleet(engine), server.paths.count("/generate"), engine.alive

    [generation], asked, alive = run(scenario())
    assert (len(generation.token_ids), asked, alive) == (4, 3, True)


def test_one_that_stays_unavailable_is_not_asked_for_ever(monkeypatch):
    monkeypatch.setattr(http, "AGAIN_S", 0.01)

    async def scenario():
        async with scripted(saying(reply({}, "503 Service Unavailable"))) as (server, engine):
            with pytest.raises(EngineError, match="503"):
                await through_a_fleet(engine)
            return server.paths.count("/generate")

    assert run(scenario()) == 4


def test_a_server_says_when_it_is_worth_another_try_but_no_later_than_half_a_minute():
    async def scenario():
        async with scripted(saying(reply({}, "503 Service Unavailable", "Retry-After: 86400"))) as (_, engine):
            with pytest.raises(ConnectionLost) as raised:
                await engine._client.call("/generate", 10.0, {})
            return raised.value.again_s

    assert run(scenario()) == 30.0


@pytest.mark.parametrize("pace_s", [60.0, 0.02], ids=["hangs", "trickles"])
def test_an_answer_that_does_not_end_is_aborted_at_its_deadline(pace_s):
    async def say(path, body, writer):
        if path == "/generate":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(pace_s)
        writer.write(reply({}))

    async def scenario():
        async with scripted(say, sections=section(deadline_s=0.3)) as (server, engine):
            with pytest.raises(EngineError, match=r"/generate: no answer within 0\.3 s"):
                await engine.generate([request()])
            aborted = await server.until_asked("/abort_request")
            return aborted["rid"], server.asked[0][1]["rid"], engine.alive

    aborted, asked, alive = run(scenario())
    assert aborted == asked and asked.startswith("s/") and alive


@pytest.mark.parametrize("healthy", [True, False])
def test_a_call_that_is_cancelled_is_aborted_even_where_its_connection_was_lost(healthy):
    """While the server is asked whether it lives, too."""

    async def say(path, body, writer):
        if path != "/generate":
            writer.write(reply({}))
        elif healthy:
            await asyncio.sleep(60)

    async def scenario():
        async with scripted(say) as (server, engine):
            server.healthy = healthy
            call = asyncio.create_task(engine.generate([request()]))
            asked = await server.until_asked("/generate")
            while not healthy and not server.health_asked:
                await asyncio.sleep(0.01)
            call.cancel()
            aborted = await server.until_asked("/abort_request")
            with pytest.raises(asyncio.CancelledError):
                await call
            return asked["rid"], aborted["rid"]

    asked, aborted = run(scenario())
    assert asked == aborted
