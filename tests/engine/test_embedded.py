import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.records.types import WeightSpan

SECTION = EngineSection(max_batch=4, threads=1, deadline_s=60.0)


def request(session="s", ids=(5, 6, 7), new=4, temperature=1.0, seed=1, stops=()):
    return GenerateRequest(session, list(ids), new, temperature, seed, stops)


def start(checkpoint, tmp_path, section=SECTION, **options):
    return start_embedded(checkpoint, 7, section, tmp_path / "logs" / "engine.log", max_context=64, **options)


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def engine(loop, checkpoint, tmp_path_factory):
    engine = loop.run_until_complete(start(checkpoint, tmp_path_factory.mktemp("engine")))
    yield engine
    loop.run_until_complete(engine.close())


def ended(pid):
    """Gone, or a zombie that its parent has yet to collect."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_answers_come_in_order_with_their_weight_version(loop, engine):
    before = engine.usage.tokens
    first, second = loop.run_until_complete(engine.generate([request("a"), request("b", new=60, ids=[9] * 4)]))
    assert len(first.token_ids) == len(first.logprobs) == 4
    assert len(second.token_ids) == 60
    assert (first.weight_spans, first.finish_reason) == ([WeightSpan(7, 0, 4)], "length")
    assert engine.usage.tokens - before == 64
    assert engine.usage.seconds > 0


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([request(ids=[])], "session 's': input_ids: needs at least one id, each in 0..511"),
        ([request(ids=[512])], "session 's': input_ids: needs"),
        ([request(new=0)], "session 's': max_new_tokens: 0 is below 1"),
        ([request(ids=[5] * 61)], "input_ids: 61 tokens and max_new_tokens 4 exceed the engine's max_context of 64"),
        ([request(temperature=float("nan"))], "session 's': temperature: nan"),
        ([request(temperature=-1.0)], "session 's': temperature: -1.0"),
        ([request(seed=-1)], "session 's': seed: -1 is negative"),
        ([request(), request()], "session_id: two requests of one call"),
    ],
)
def test_a_bad_request_is_refused_by_field(loop, engine, requests, message):
    with pytest.raises(EngineError, match=re.escape(message)):
        loop.run_until_complete(engine.generate(requests))


def test_a_cancelled_call_frees_its_session(loop, engine):
    async def scenario():
        call = asyncio.create_task(engine.generate([request("s", new=60)]))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await engine.generate([request("s")])  # refused while the session is at work

    [answer] = loop.run_until_complete(scenario())
    assert len(answer.token_ids) == 4


def test_an_ended_session_aborts_its_request(loop, engine):
    async def scenario():
        call = asyncio.create_task(engine.generate([request("s", new=60)]))
        await asyncio.sleep(0)
        await engine.end_session("s")
        return await call

    [answer] = loop.run_until_complete(scenario())
    assert answer.finish_reason == "abort"
    assert len(answer.token_ids) < 60


def test_weights_wait_for_calls_at_work_and_later_calls_for_the_weights(loop, engine, make_checkpoint, tmp_path):
    async def scenario():
        return await asyncio.gather(
            engine.generate([request("c", new=50)]),
            engine.load_weights(make_checkpoint(tmp_path / "new", seed=1), 8),
            engine.generate([request("a")]),
        )

    [before] = loop.run_until_complete(engine.generate([request("a")]))
    [[old], _, [new]] = loop.run_until_complete(scenario())
    assert old.weight_spans == [WeightSpan(7, 0, 50)]
    assert new.weight_spans == [WeightSpan(8, 0, 4)]
    assert new.logprobs != before.logprobs

    with pytest.raises(EngineError, match=r"missing.*: no such file"):
        loop.run_until_complete(engine.load_weights(tmp_path / "missing", 9))
    assert loop.run_until_complete(engine.generate([request("a")])) == [new]


def test_memory_is_released_after_calls_at_work_and_taken_again_by_the_next(loop, engine):
    async def scenario():
        return await asyncio.gather(engine.generate([request("d", new=50)]), engine.release_memory())

    [before] = loop.run_until_complete(engine.generate([request("e")]))
    [[finished], _] = loop.run_until_complete(scenario())
    assert len(finished.token_ids) == 50
    assert loop.run_until_complete(engine.generate([request("e")])) == [before]


def test_deterministic_answers_survive_a_kill_bit_for_bit(checkpoint, tmp_path):
    """The kill fails every call at once, with the end of the log."""
    group = [request(f"g{i}", ids=range(5, 15 + 3 * i), new=20, seed=i) for i in range(6)]

    async def first_life():
        engine = await start(checkpoint, tmp_path, deterministic=True)
        answers = await engine.generate(group)
        (tmp_path / "logs" / "engine.log").write_text("the last words\n")
        os.kill(engine.pid, signal.SIGSTOP)  # so that the calls are at work when it dies
        calls = [asyncio.create_task(engine.generate([request(f"s{i}")])) for i in range(3)]
        await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        for call in calls:
            with pytest.raises(EngineError, match=r"(?s)ended with code -9.*the last words"):
                await asyncio.wait_for(call, 20)
        with pytest.raises(EngineError, match="ended with code -9"):
            await engine.end_session("s0")
        await engine.close()
        return answers

    async def second_life():
        engine = await start(checkpoint, tmp_path, deterministic=True)
        others = [asyncio.create_task(engine.generate([request(f"o{i}", ids=[8] * (i + 1), seed=i)])) for i in range(5)]
        answers = await engine.generate(group)
        await asyncio.gather(*others)
        await engine.close()
        return answers

    assert asyncio.run(first_life()) == asyncio.run(second_life())


def test_a_hung_process_misses_the_deadline_and_is_ended(checkpoint, tmp_path):
    async def scenario():
        engine = await start(checkpoint, tmp_path, SECTION.model_copy(update={"deadline_s": 0.5}))
        os.kill(engine.pid, signal.SIGSTOP)
        slow = asyncio.create_task(engine.load_weights(checkpoint, 8))
        with pytest.raises(EngineError, match=r"did not answer 'generate' within 0\.5 s and was ended"):
            await engine.generate([request()])
        with pytest.raises(EngineError, match=r"within 0\.5 s"):
            await slow
        await engine.close()
        assert ended(engine.pid)

    asyncio.run(scenario())


def test_a_model_that_cannot_be_loaded_is_refused_at_the_start(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"bad: holds no safetensors file"):
        asyncio.run(start_embedded(tmp_path / "bad", 0, SECTION, tmp_path / "engine.log"))


def test_the_engine_dies_with_its_controller(checkpoint, tmp_path):
    """The controller is killed outright while another process holds its end of the pipe: only the kernel can tell."""
    script = f"""
import asyncio, subprocess, time
from pathlib import Path
from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded
section, log = EngineSection(threads=1), Path({str(tmp_path / "engine.log")!r})
engine = asyncio.new_event_loop().run_until_complete(start_embedded(Path({str(checkpoint)!r}), 0, section, log))
pipe = engine._child._process.stdin.transport.get_extra_info("pipe").fileno()
print(engine.pid, subprocess.Popen(["sleep", "60"], pass_fds=[pipe], stdout=subprocess.DEVNULL).pid, flush=True)
time.sleep(60)
"""
    controller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    pid, holder = map(int, controller.stdout.readline().split())
    try:
        controller.kill()
        controller.wait()
        deadline = time.monotonic() + 20
        while not ended(pid):
            assert time.monotonic() < deadline, "the engine outlived its controller"
            time.sleep(0.05)
    finally:
        os.kill(holder, signal.SIGKILL)


def test_importing_the_controller_side_loads_no_torch():
    code = "import sys, gagar_mcore.engine.embedded; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
