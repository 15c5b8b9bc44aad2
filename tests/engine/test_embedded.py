import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import psutil
import pytest

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.records.types import WeightSpan

SECTION = EngineSection(max_batch=4, threads=1, deadline_s=60.0)


def request(session="s", ids=(5, 6, 7), new=4, temperature=1.0, seed=1, stops=()):
    return GenerateRequest(session, list(ids), new, temperature, seed, stops)


@asynccontextmanager
async def running(checkpoint, tmp_path, section=SECTION, **options):
    engine = await start_embedded(checkpoint, 7, section, tmp_path / "logs" / "engine.log", max_context=64, **options)
    try:
        yield engine
    finally:
        await engine.close()


def ended(pid):
    """Gone, or a zombie that its parent has yet to collect."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_generate_load_weights_and_refusals(checkpoint, make_checkpoint, tmp_path):
    async def scenario():
        async with running(checkpoint, tmp_path) as engine:
            assert (engine.max_context, engine.vocab_size) == (64, 512)
            first, second = await engine.generate([request("a"), request("b", new=60, ids=[9] * 4)])
            assert len(first.token_ids) == len(first.logprobs) == 4 and len(second.token_ids) == 60
            assert first.weight_spans == [WeightSpan(7, 0, 4)] and first.finish_reason == "length"
            assert engine.usage.tokens == 64 and engine.usage.seconds > 0

            for bad, message in [
                (request(ids=[]), "input_ids: needs at least one id, each in 0..511"),
                (request(ids=[512]), "input_ids"),
                (request(new=0), "max_new_tokens: 0 is below 1"),
                (request(ids=[5] * 61), "input_ids: 61 tokens and max_new_tokens 4 exceed the engine's max_context of 64"),
                (request(temperature=float("nan")), "temperature"),
                (request(seed=-1), "seed"),
            ]:
                with pytest.raises(EngineError, match=f"session 's': {message}"):
                    await engine.generate([bad])
            with pytest.raises(EngineError, match="session_id: two requests"):
                await engine.generate([request(), request()])

            # Weights that come while a call runs: the call ends with the old ones, a later one has the new ones.
            new = make_checkpoint(tmp_path / "new", seed=1)
            old_call = asyncio.create_task(engine.generate([request("c", new=50)]))
            await asyncio.sleep(0)
            load = asyncio.create_task(engine.load_weights(new, 8))
            await asyncio.sleep(0)
            new_call = asyncio.create_task(engine.generate([request("a", new=4)]))
            [[old_answer], _, [new_answer]] = await asyncio.gather(old_call, load, new_call)
            assert old_answer.weight_spans == [WeightSpan(7, 0, 50)]
            assert new_answer.weight_spans == [WeightSpan(8, 0, 4)]
            assert new_answer.logprobs != first.logprobs

            with pytest.raises(EngineError, match=r"missing.*: .*no such file"):
                await engine.load_weights(tmp_path / "missing", 9)
            [answer] = await engine.generate([request("a", new=4)])
            assert answer.weight_spans == [WeightSpan(8, 0, 4)]
            await engine.end_session("a")

    asyncio.run(scenario())


def test_deterministic_answers_survive_a_restart_bit_for_bit(checkpoint, tmp_path):
    group = [request(f"g{i}", ids=range(5, 15 + 3 * i), new=20, seed=i) for i in range(6)]

    async def answers(before):
        async with running(checkpoint, tmp_path, deterministic=True) as engine:
            others = [asyncio.create_task(engine.generate([request(f"o{i}", ids=[8] * (i + 1), seed=i)])) for i in range(before)]
            result = await engine.generate(group)
            await asyncio.gather(*others)
            return result

    assert asyncio.run(answers(0)) == asyncio.run(answers(5))


def test_a_killed_process_fails_every_call_at_once_with_the_end_of_its_log(checkpoint, tmp_path):
    async def scenario():
        async with running(checkpoint, tmp_path) as engine:
            (tmp_path / "logs" / "engine.log").write_text("the last words\n")
            os.kill(engine.pid, signal.SIGSTOP)  # so that the calls are at work when it dies
            calls = [asyncio.create_task(engine.generate([request(f"s{i}")])) for i in range(3)]
            await asyncio.sleep(0.1)
            os.kill(engine.pid, signal.SIGKILL)
            for call in calls:
                with pytest.raises(EngineError, match=r"(?s)ended with code -9.*the last words"):
                    await asyncio.wait_for(call, 10)
            with pytest.raises(EngineError, match="ended with code -9"):
                await engine.end_session("s0")

    asyncio.run(scenario())


def test_a_hung_process_misses_the_deadline_and_is_ended(checkpoint, tmp_path):
    async def scenario():
        section = SECTION.model_copy(update={"deadline_s": 0.5})
        async with running(checkpoint, tmp_path, section) as engine:
            os.kill(engine.pid, signal.SIGSTOP)
            slow = asyncio.create_task(engine.load_weights(checkpoint, 8))
            with pytest.raises(EngineError, match=r"did not answer 'generate' within 0\.5 s and was ended"):
                await engine.generate([request()])
            with pytest.raises(EngineError, match=r"within 0\.5 s"):
                await slow
            await engine.close()
            assert ended(engine.pid)

    asyncio.run(scenario())


def test_a_cancelled_call_frees_its_row(checkpoint, tmp_path):
    async def scenario():
        async with running(checkpoint, tmp_path) as engine:
            call = asyncio.create_task(engine.generate([request("s", new=60)]))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            [answer] = await engine.generate([request("s")])  # refused while the session is at work
            assert len(answer.token_ids) == 4

    asyncio.run(scenario())


def test_a_model_that_cannot_be_loaded_is_refused_at_the_start(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"bad: holds no tensors"):
        asyncio.run(start_embedded(tmp_path / "bad", 0, SECTION, tmp_path / "engine.log"))


def test_the_engine_dies_with_its_controller(checkpoint, tmp_path):
    """Killed outright: it closes nothing and says nothing."""
    script = f"""
import asyncio, sys, time
from pathlib import Path
from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded
engine = asyncio.new_event_loop().run_until_complete(
    start_embedded(Path({str(checkpoint)!r}), 0, EngineSection(threads=1), Path({str(tmp_path / "engine.log")!r}))
)
print(engine.pid, flush=True)
time.sleep(60)
"""
    controller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    pid = int(controller.stdout.readline())
    controller.kill()
    controller.wait()
    deadline = time.monotonic() + 20
    while not ended(pid):
        assert time.monotonic() < deadline, "the engine outlived its controller"
        time.sleep(0.05)


def test_importing_the_controller_side_loads_no_torch():
    code = "import sys, gagar_mcore.engine.embedded; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
