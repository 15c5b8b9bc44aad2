"""Stand-ins of what the scheduler's benchmark cannot have by the thousand: an engine and sandboxes that wait instead of working.

They do nothing but sleep for a drawn time on the clock of the event loop, fail now and then, and answer with the same tokens.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.plan.latency import Latency
from gagar_mcore.records.types import Verification, WeightSpan
from gagar_mcore.tasks.question import Problem
from gagar_sandbox.types import ExecResult, OnOutput, Sandbox, SandboxLost, SandboxSpec


@dataclass(frozen=True, slots=True)
class Waits:
    """fault: the chance that one call fails as the infrastructure does."""

    rng: Random
    turn: Latency
    command: Latency
    start: Latency
    test: Latency
    fault: float

    def fails(self) -> bool:
        return self.rng.random() < self.fault


@dataclass(slots=True)
class SimulatedEngine:
    """answer: the ids of every turn."""

    waits: Waits
    answer: list[int]
    turns: int = 0

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        self.turns += len(requests)
        await asyncio.sleep(self.waits.turn.draw(self.waits.rng))
        if self.waits.fails():
            raise EngineError("a simulated fault")
        ids = self.answer
        return [Generation(list(ids), [-0.5] * len(ids), [WeightSpan(0, 0, len(ids))], "stop") for _ in requests]

    async def end_session(self, session_id: str) -> None: ...
    async def load_weights(self, directory: Path, version: int) -> None: ...
    async def release_memory(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SimulatedSandbox:
    waits: Waits
    output: bytes

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        output_limit: int = 65536,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        seconds = self.waits.command.draw(self.waits.rng)
        await asyncio.sleep(min(seconds, timeout_s))
        return ExecResult("exited", 0, self.output, b"", False, seconds)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        return self.output

    async def write(self, path: str, data: bytes) -> None: ...
    async def snapshot(self) -> None: ...
    async def reset(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class SimulatedPool:
    waits: Waits
    output: bytes
    begun: Callable[[], None] = lambda: None  # told of every sandbox that is asked for

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        self.begun()
        await asyncio.sleep(self.waits.start.draw(self.waits.rng))
        if self.waits.fails():
            raise SandboxLost("a simulated fault")
        return SimulatedSandbox(self.waits, self.output)

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SimulatedJudge:
    """Half of all submissions pass."""

    waits: Waits

    async def verify(self, task: Problem, submission: str) -> Verification:
        seconds = self.waits.test.draw(self.waits.rng)
        await asyncio.sleep(seconds)
        return Verification(float(self.waits.rng.random() < 0.5), {}, "", seconds)
