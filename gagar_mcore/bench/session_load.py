"""Sessions by the thousand through the real scheduler, slots, sampler and session code, with stand-ins for what they wait for."""

import asyncio
import math
import time
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.agent.bash import BashTools
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner
from gagar_mcore.bench.resident import peak, reset_peak
from gagar_mcore.bench.simulated import SimulatedJudge, SimulatedPool, Waits
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.records.types import Trajectory
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.group import Sampler
from gagar_mcore.rollout.scheduler import Scheduler
from gagar_mcore.rollout.slots import Rank, Slots
from gagar_mcore.tasks.mix import Draw, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Limits

MEMBERS, TURNS = 16, 20
WAITING = 0.25  # sessions beyond those that are live at once
FAR_S = 1e9
OUTPUT = b"src/parser.py:40: error: expected an indented block\n" * 2


@dataclass(frozen=True, slots=True)
class Measured:
    """held: most sessions in memory at once, those that had ended and waited for the rest of their group among them. cpu_ms: of
    the controller, a turn. kilobytes: of resident memory at the peak, a session held. idle: share of the slots until the last
    session had begun. tokens: of a session that ended well."""

    live: int
    held: int
    sessions: int
    failed: int
    turns: int
    tokens: int
    cpu_ms: float
    kilobytes: float
    idle: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a group; every one counts."""

    trajectories: int
    failed: int
    turns: int
    dropped: str | None = None
    kept: bool = True


class SessionLoad:
    def __init__(self, live: int, renderer: Renderer, engine: Engine, waits: Waits, turns: int = TURNS) -> None:
        self._live, self._groups = live, math.ceil(live * (1 + WAITING) / MEMBERS)
        self._slots = Slots(live)
        pool = SimulatedPool(waits, OUTPUT, self._note_begun)
        runner = SessionRunner(pool, BashTools(), renderer, SessionLimits(turns, 512, 1 << 20, 1.0, FAR_S), Limits())
        self._sampler = Sampler(runner, engine, SimulatedJudge(waits), self._slots, False, True, True)
        self._tokens = self._held = self._most_held = 0
        self._begun = (0.0, 0.0)  # when the last session had begun, and what slots had been busy by then

    async def run(self) -> Measured:
        scheduler = Scheduler(self._groups, 3, Breaker(3, FAR_S))
        draws = _mix().draws({})
        started, busy = asyncio.get_running_loop().time(), self._slots.busy_seconds()
        resident, cpu = reset_peak(), time.process_time()
        ended = [e.result for e in await scheduler.step(self._group, draws, self._groups, self._groups)]
        cpu = time.process_time() - cpu
        turns = sum(group.turns for group in ended)
        return Measured(
            live=self._live,
            held=self._most_held,
            sessions=sum(group.trajectories for group in ended),
            failed=sum(group.failed for group in ended),
            turns=turns,
            tokens=self._tokens,
            cpu_ms=1000 * cpu / turns,
            kilobytes=(peak() - resident) / 1000 / self._most_held,
            idle=1 - (self._begun[1] - busy) / ((self._begun[0] - started) * self._live),
        )

    async def _group(self, draw: Draw, rank: Rank) -> Outcome:
        keys = [SessionKey(1, "train", 1, f"g{draw.index:05d}", member) for member in range(MEMBERS)]
        trajectories = await self._sampler.sample(keys, draw.task, self._done, rank)
        self._held -= len(trajectories)
        return Outcome(len(trajectories), sum(not t.valid for t in trajectories), sum(len(t.turns) for t in trajectories))

    def _done(self, trajectory: Trajectory) -> None:
        self._tokens = max(self._tokens, len(trajectory.token_ids))

    def _note_begun(self) -> None:
        self._held += 1
        self._most_held = max(self._most_held, self._held)
        self._begun = (asyncio.get_running_loop().time(), self._slots.busy_seconds())


def _mix() -> TaskMix:
    tasks = [Task(f"t{i}", Path(), "Mend the parser.", Path(), Path(), (), (), agent_timeout_s=FAR_S) for i in range(1000)]
    order = TaskOrder(tasks, 1)
    return TaskMix([Source("code", order, 3.0), Source("other", order, 1.0)])
