import asyncio
import json
from random import Random

from test_bench_command import bench

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.bench.scheduler import measure, spoken
from gagar_mcore.bench.session_load import Measured, SessionLoad
from gagar_mcore.bench.simulated import Waits
from gagar_mcore.bench.stand_in_server import stand_in_engine
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.plan.latency import Latency


def test_sessions_run_through_the_scheduler_to_their_end() -> None:
    result = bench("scheduler", "--json", "--live", "64")
    assert result.returncode == 0, result.stderr
    [case] = json.loads(result.stdout)["cases"]
    assert (case["live"], case["sessions"]) == (64, 80)
    assert 20 * (case["sessions"] - case["failed"]) <= case["turns"] <= 20 * case["sessions"]
    assert case["tokens"] > 20 and case["cpu_ms"] > 0 and abs(case["idle"]) < 1e-9


def test_equal_loads_take_equal_ways() -> None:
    first, second = (measure(32, sockets=False) for _ in range(2))
    assert (first.sessions, first.turns, first.failed) == (second.sessions, second.turns, second.failed)


def test_sessions_run_over_real_sockets() -> None:
    checkpoint = shipped_checkpoint("tiny-mimo-v2")
    assert checkpoint is not None
    renderer, quick = load_renderer(checkpoint), Latency(0.001)
    waits = Waits(Random(1), turn=quick, command=quick, start=quick, test=quick, fault=0.0)

    async def main() -> Measured:
        async with stand_in_engine(quick, spoken(renderer)) as engine:
            return await SessionLoad(16, renderer, engine, waits).run()

    measured = asyncio.run(asyncio.wait_for(main(), 60))
    assert (measured.sessions, measured.failed, measured.turns) == (32, 0, 640)
