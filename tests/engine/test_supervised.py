import asyncio
import os
import signal

import pytest

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.supervised import SupervisedEngine

SECTION = EngineSection(max_batch=4, threads=1, deadline_s=60.0)


def request(seed=1, ids=(5, 6, 7), new=40):
    return GenerateRequest(f"s{seed}", list(ids), new, 1.0, seed, ())


def supervise(checkpoint, tmp_path, restarts, body):
    """Run `body(engine, started)`; `started` lists every engine process in order of its start."""

    async def main():
        started = []

        async def start(weights, version):
            started.append(
                await start_embedded(weights, version, SECTION, tmp_path / "e.log", max_context=64, deterministic=True)
            )
            return started[-1]

        engine = SupervisedEngine(start, await start(checkpoint, 3), checkpoint, 3, restarts)
        try:
            return await body(engine, started)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


def kill(engine):
    os.kill(engine.pid, signal.SIGKILL)


def test_calls_lost_with_the_process_are_answered_the_same_by_the_next(checkpoint, tmp_path):
    async def body(engine, started):
        calm = [await engine.generate([request(seed)]) for seed in (1, 2)]
        lost = asyncio.gather(*(engine.generate([request(seed)]) for seed in (1, 2)))
        await asyncio.sleep(0.01)
        kill(started[0])
        again = await lost
        await engine.end_session("s1")
        return calm, again, len(started)

    calm, again, started = supervise(checkpoint, tmp_path, 3, body)
    assert again == calm
    assert started == 2


def test_a_restarted_engine_holds_the_weights_that_were_being_loaded(checkpoint, tmp_path):
    async def body(engine, started):
        kill(started[0])
        await engine.release_memory()  # a dead engine holds none
        await engine.load_weights(checkpoint, 9)
        [generation] = await engine.generate([request()])
        return {span.version for span in generation.weight_spans}

    assert supervise(checkpoint, tmp_path, 1, body) == {9}


def test_a_refused_call_is_no_reason_to_start_again(checkpoint, tmp_path):
    async def body(engine, started):
        with pytest.raises(EngineError, match="max_new_tokens"):
            await engine.generate([request(new=0)])
        return len(started)

    assert supervise(checkpoint, tmp_path, 3, body) == 1


def test_an_engine_that_keeps_dying_is_given_up(checkpoint, tmp_path):
    async def body(engine, started):
        kill(started[0])
        with pytest.raises(EngineError, match="ended with code -9"):
            await engine.generate([request()])
        await engine.end_session("s1")

    supervise(checkpoint, tmp_path, 0, body)


def test_a_caller_that_gives_up_leaves_the_restart_to_the_others(checkpoint, tmp_path):
    async def body(engine, started):
        kill(started[0])
        impatient = asyncio.create_task(engine.generate([request(1)]))
        patient = asyncio.create_task(engine.generate([request(2)]))
        await asyncio.sleep(0.5)
        impatient.cancel()
        [generation] = await patient
        return len(generation.token_ids), impatient.cancelled(), len(started)

    assert supervise(checkpoint, tmp_path, 1, body) == (40, True, 2)


def test_a_closed_engine_is_not_started_again(checkpoint, tmp_path):
    async def body(engine, started):
        lost = asyncio.create_task(engine.generate([request()]))
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await lost
        return len(started)

    assert supervise(checkpoint, tmp_path, 3, body) == 1
