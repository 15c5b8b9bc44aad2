"""Between steps an engine that shares its machine with the trainer rests, and with it the sessions that are under way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.engine.protocol import Engine, GenerateRequest, Generation


class Gate:
    """Open at first. While it is closed, no call to a `GatedEngine` is begun, and deadlines stand still."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()
        self._left: dict[asyncio.Timeout, float] = {}  # seconds of each deadline, as of the last time that the gate moved

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def close(self) -> None:
        if not self.is_open:
            return
        self._opened.clear()
        now = asyncio.get_running_loop().time()
        for timeout in self._running():
            self._left[timeout] = (timeout.when() or now) - now
            timeout.reschedule(None)

    def open(self) -> None:
        if self.is_open:
            return
        self._opened.set()
        now = asyncio.get_running_loop().time()
        for timeout in self._running():
            timeout.reschedule(now + self._left[timeout])

    def _running(self) -> list[asyncio.Timeout]:
        """Deadlines that have not passed: of one that has, its session may still be closing its sandbox."""
        return [timeout for timeout in self._left if not timeout.expired()]

    async def wait(self) -> None:
        await self._opened.wait()

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[None]:
        """`asyncio.timeout` that does not count the time while the gate is closed."""
        async with asyncio.timeout(seconds if self.is_open else None) as timeout:
            self._left[timeout] = seconds
            try:
                yield
            finally:
                del self._left[timeout]


@dataclass(frozen=True, slots=True)
class GatedEngine:
    """An engine for sessions, which its owner closes, loads and rests itself."""

    engine: Engine
    gate: Gate

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        await self.gate.wait()
        return await self.engine.generate(requests)

    async def end_session(self, session_id: str) -> None:
        await self.engine.end_session(session_id)

    async def load_weights(self, directory: Path, version: int) -> None:
        await self.engine.load_weights(directory, version)

    async def release_memory(self) -> None:
        await self.engine.release_memory()

    async def close(self) -> None:
        await self.engine.close()
