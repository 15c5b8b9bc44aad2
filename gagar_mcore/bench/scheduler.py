"""What a live session costs the controller: thousands of them through the real scheduler, slots, sampler and session code.

    python benchmarks/scheduler.py [--live 1000 ...] [--turns 20] [--sockets] [--json]

Engine, sandboxes and tests are stand-ins that wait for times of a long tail; the clock is simulated, so that all CPU time is the
controller's. A session has 20 turns or `--turns`; about one in a hundred fails as the infrastructure does. There are a quarter
more sessions than the `--live` slots that they take turns in. With `--sockets` the engine is a stand-in server in another
process, spoken to over HTTP by the client and in the format of the SGLang engine, in real time. Each measurement is made in a
fresh process, with the allocator set as docs/scheduler.md advises for thousands of sessions.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from random import Random
from typing import Any

from gagar_mcore.agent.calls import Answer, ToolCall
from gagar_mcore.agent.renderer import Renderer, load_renderer
from gagar_mcore.bench import arguments
from gagar_mcore.bench.session_load import TURNS, Measured, SessionLoad
from gagar_mcore.bench.simulated import SimulatedEngine, Waits
from gagar_mcore.bench.stand_in_server import stand_in_engine
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.plan.latency import Latency
from gagar_mcore.plan.virtual_time import run_virtually

LIVE = (1_000, 10_000, 50_000)
LIVE_ON_SOCKETS = (1_000,)
MODULE = "gagar_mcore.bench.scheduler"
DEADLINE_S = 3600.0
ALLOCATOR = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=512"}
FAULT = 1 / 2_100  # of a call: a session has 21
COMMAND = "sed -n 1,12p src/parser.py"
SIMULATED = {"turn": Latency(8.0, 1.0), "command": Latency(0.5, 1.5), "start": Latency(1.0, 0.5), "test": Latency(20.0, 1.0)}
REAL = {"turn": Latency(0.5, 0.8), "command": Latency(0.05, 1.0), "start": Latency(0.05), "test": Latency(0.1)}


def run(live: Sequence[int], sockets: bool, turns: int) -> list[Measured]:
    return [_in_fresh_process(count, sockets, turns) for count in live]


def measure(live: int, sockets: bool, turns: int = TURNS) -> Measured:
    checkpoint = shipped_checkpoint("tiny-mimo-v2")
    assert checkpoint is not None
    renderer = load_renderer(checkpoint)
    answer = spoken(renderer)
    waits = Waits(Random(1), **(REAL if sockets else SIMULATED), fault=FAULT)
    if not sockets:
        return run_virtually(SessionLoad(live, renderer, SimulatedEngine(waits, answer), waits, turns).run())

    async def over_sockets() -> Measured:
        async with stand_in_engine(waits.turn, answer) as engine:
            return await SessionLoad(live, renderer, engine, waits, turns).run()

    return asyncio.run(over_sockets())


def spoken(renderer: Renderer) -> list[int]:
    """The ids of every turn."""
    return renderer.answer(Answer(calls=(ToolCall("bash", {"command": COMMAND}),)))


def _in_fresh_process(live: int, sockets: bool, turns: int) -> Measured:
    setting = json.dumps({"live": live, "sockets": sockets, "turns": turns})
    command = [sys.executable, "-m", MODULE, "--measure", setting]
    environment = ALLOCATOR | os.environ  # who sets it otherwise is measured so
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment)
    if result.returncode:
        raise SystemExit(f"{live} sessions: {result.stderr.strip()}")
    return Measured(**json.loads(result.stdout))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="gagar bench scheduler", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shown = ", ".join(map(str, LIVE))
    parser.add_argument("--live", action="append", type=arguments.positive, help=f"sessions at once; default: {shown}")
    parser.add_argument("--sockets", action="store_true", help="an engine behind real sockets; default: 1000 sessions")
    parser.add_argument("--turns", type=arguments.positive, default=TURNS, help=f"of a session; default: {TURNS}")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure is not None:
        print(json.dumps(asdict(measure(**options.measure))))
        return
    measured = run(options.live or (LIVE_ON_SOCKETS if options.sockets else LIVE), options.sockets, options.turns)
    print(json.dumps({"sockets": options.sockets, "cases": [asdict(m) for m in measured]}) if options.json else table(measured))


def table(measured: Sequence[Measured]) -> str:
    counts = f"{'live':>7}{'held':>7}{'sessions':>10}{'failed':>8}{'turns':>10}{'tokens':>8}"
    head = f"{counts}{'CPU ms a turn':>15}{'kB a session':>14}{'idle slots':>12}"
    rows = [_row(asdict(m)) for m in measured]
    growth = measured[-1].cpu_ms / measured[0].cpu_ms
    return "\n".join([head, *rows, *([f"CPU a turn, last to first: {growth:.2f}"] if len(rows) > 1 else [])])


def _row(m: dict[str, Any]) -> str:
    counts = f"{m['live']:7}{m['held']:7}{m['sessions']:10}{m['failed']:8}{m['turns']:10}{m['tokens']:8}"
    return f"{counts}{m['cpu_ms']:15.3f}{m['kilobytes']:14.1f}{m['idle']:12.2%}"


if __name__ == "__main__":
    main()
