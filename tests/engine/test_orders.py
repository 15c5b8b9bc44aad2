"""Orders to a server beside its calls: new weights that do not come as they should, and memory that is given back."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import pytest
from scripted import SERVING, WEIGHTS, meta, reply, request, run, scripted, section

from gagar_mcore.engine import update
from gagar_mcore.engine.attach import AttachedServer
from gagar_mcore.engine.fleet import Fleet
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.sglang import SGLangEngine
from gagar_mcore.weights.tensor import SharedMemory
from gagar_mcore.weights.transport import TransportError

FAULTS = [
    RuntimeError("unable to allocate shared memory"),
    ValueError("its type F16 is not sent to engines"),
    OSError(28, "No space left on device"),
    KeyError("ranks"),
    TransportError("no trainer offers to send them"),
]


@pytest.fixture
def unlooked(monkeypatch):
    """This server holds no parameters to compare."""

    async def none_differ(order, weights, on_gpu):
        return []

    monkeypatch.setattr(update, "differing_parameters", none_differ)


def obeying(refused=()):
    """A server that does what it is told, but for the paths that are `refused` just then."""
    held = ["0"]

    async def say(path, body, writer):
        held[0] = body.get("weight_version", held[0])
        told = {"/model_info": {"weight_version": held[0]}, "/generate": {"meta_info": meta(version=int(held[0]))}}
        writer.write(reply(told.get(path, {}), "400 Bad Request" if path in refused else "200 OK"))

    return say


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_whatever_keeps_weights_from_coming_the_server_reads_the_directory(fault, unlooked, monkeypatch, caplog):
    async def fails(self, order, given):
        raise fault

    monkeypatch.setattr(SharedMemory, "bring", fails)

    async def scenario():
        async with scripted(obeying(), sections=section(server={"update": "tensor"})) as (server, engine):
            await engine.load_weights(WEIGHTS, 1)
            return server.paths, await engine.generate([request(new=4)])

    paths, [generation] = run(scenario())
    assert "/update_weights_from_disk" in paths and generation.weight_spans[0].version == 1
    assert str(fault) in caplog.text and "now the server reads all of it" in caplog.text


def test_where_the_directory_cannot_be_read_either_the_server_is_ended(unlooked, caplog):
    caplog.set_level(logging.ERROR)

    async def scenario():
        async with scripted(obeying(refused=["/update_weights_from_disk"])) as (server, engine):
            with pytest.raises(EngineError, match="/update_weights_from_disk: 400"):
                await engine.load_weights(WEIGHTS, 1)
            return server.paths, engine.alive

    paths, alive = run(scenario())
    assert not alive and "/continue_generation" not in paths


def test_memory_is_given_back_once_nothing_is_at_work_and_taken_before_the_next_call(monkeypatch):
    monkeypatch.setattr("gagar_mcore.engine.sglang.WATCH_S", 0.02)

    async def scenario():
        async with scripted(obeying(), sections=section(device="cuda")) as (server, engine):
            for _ in range(2):
                await engine.release_memory()
            asked = server.health_asked
            await asyncio.sleep(0.2)
            watched = server.health_asked - asked
            await engine.generate([request()])
            return watched, server.paths

    watched, paths = run(scenario())
    assert watched == 0  # a question after health is a request, of which a server without memory dies
    released = ["/flush_cache?timeout=20", "/release_memory_occupation"]
    assert paths == [*released, "/resume_memory_occupation", "/generate"]


@pytest.mark.parametrize("refused", ["/flush_cache?timeout=20", "/release_memory_occupation", "/resume_memory_occupation"])
def test_a_server_that_does_not_let_go_of_its_memory_or_does_not_take_it_is_ended(refused):
    async def scenario():
        async with scripted(obeying(refused=[refused]), sections=section(device="cuda")) as (_, engine):
            with pytest.raises(EngineError, match=f"{refused[:12]}.*: 400"):
                await engine.release_memory()
                await engine.generate([request()])
            return engine.alive

    assert not run(scenario())


def test_one_of_three_that_fails_in_the_middle_is_brought_back_with_the_new_weights(unlooked):
    """The others go on meanwhile."""
    refused: list[list[str]] = [[], [], []]

    async def scenario():
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(scripted(obeying(paths))) for paths in refused]

            async def start(number, weights, version):
                endpoint = servers[number][1]._client.endpoint
                engine = SGLangEngine(AttachedServer(endpoint), replace(SERVING, version=version), section())
                await engine.load_weights(weights, version)
                return engine

            fleet = Fleet(lambda: {str(number): partial(start, number) for number in range(3)}, WEIGHTS, 0, 4, 10.0)
            await fleet.start()
            refused[1].append("/update_weights_from_disk")
            await fleet.load_weights(WEIGHTS, 1)
            alive = fleet.alive
            answers = await asyncio.gather(*(fleet.generate([request(f"s{i}")]) for i in range(6)))
            refused[1].clear()
            while fleet.alive < 3:
                await asyncio.sleep(0.01)
            answers += await asyncio.gather(*(fleet.generate([request(f"t{i}")]) for i in range(6)))
            await fleet.close()
            asked = [server.paths.count("/generate") for server, _ in servers]
            return alive, {answer.weight_spans[0].version for [answer] in answers}, asked

    alive, versions, asked = run(scenario())
    assert (alive, versions) == (2, {1}) and sum(asked) == 12 and min(asked) > 0
