"""One engine of a fleet, started again when it dies."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gagar_mcore.engine.protocol import Engine, EngineError

RESTARTS = 3  # of an engine that does not stay up
STAYED_S = 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # between attempts to start


class MortalEngine(Engine, Protocol):
    @property
    def alive(self) -> bool:
        """False once the process behind the engine has ended, however that came."""


Start = Callable[[Path, int], Awaitable[MortalEngine]]
Newest = Callable[[], tuple[Path, int]]


@dataclass(slots=True, eq=False)
class Member:
    """`engine` is None while there is none; then `obituary` says why, and `given_up` that there will be none. at_work: requests;
    sessions: those whose home this is."""

    start: Start
    restarts: float
    engine: MortalEngine | None = None
    obituary: str = ""
    given_up: bool = False
    at_work: int = 0
    sessions: int = 0
    _left: float = 0.0
    _since: float = 0.0
    _revival: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._left = self.restarts

    async def begin(self, newest: Newest) -> None:
        """Raises EngineError where it does not start. With the newest weights, also where they change meanwhile."""
        weights, version = newest()
        engine = await self.start(weights, version)
        try:
            while (weights, version) != newest():
                weights, version = newest()
                await engine.load_weights(weights, version)
        except BaseException:
            await engine.close()
            raise
        self.engine, self._since = engine, time.monotonic()

    def revive(self, reason: str, newest: Newest, changed: Callable[[], None]) -> None:
        """Replace an engine that is lost, or was never there; `changed` is called when that has come to an end."""
        lost, self.engine, self.obituary = self.engine, None, reason
        if time.monotonic() - self._since > STAYED_S:
            self._left = self.restarts
        self._revival = asyncio.create_task(self._revive(lost, newest, changed))

    async def close(self) -> None:
        self.given_up = True
        if self._revival is not None:
            self._revival.cancel()
            await asyncio.wait([self._revival])
        if self.engine is not None:
            await self.engine.close()

    async def _revive(self, lost: MortalEngine | None, newest: Newest, changed: Callable[[], None]) -> None:
        pause = FIRST_PAUSE_S
        try:
            if lost is not None:
                await lost.close()
            while self._left > 0:
                self._left -= 1
                try:
                    await self.begin(newest)
                    return
                except EngineError as error:
                    self.obituary = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            self.given_up = True
        finally:
            changed()
