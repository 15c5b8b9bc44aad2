"""An engine that survives the death of its process."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from gagar_mcore.engine.protocol import Engine, EngineError, GenerateRequest, Generation


class MortalEngine(Engine, Protocol):
    @property
    def alive(self) -> bool:
        """False once the process behind the engine has ended, however that came."""


class SupervisedEngine:
    """Starts the engine again, at most `restarts` times, with the weights that it held, and asks again what was lost: a call
    gives the same answer whoever it is asked of, since each of its draws is fixed by the request."""

    def __init__(
        self,
        start: Callable[[Path, int], Awaitable[MortalEngine]],
        engine: MortalEngine,
        weights: Path,
        version: int,
        restarts: int = 3,
    ) -> None:
        self._start = start
        self._engine = engine
        self._weights, self._version = weights, version
        self._restarts = restarts
        self._revival: asyncio.Task[None] | None = None
        self._closed = False

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        engine = self._engine
        try:
            return await engine.generate(requests)
        except EngineError as error:
            await self._revive(engine, error)
        return await self._engine.generate(requests)

    async def end_session(self, session_id: str) -> None:
        """A session that the engine has lost is over as well."""
        with contextlib.suppress(EngineError):
            await self._engine.end_session(session_id)

    async def load_weights(self, directory: Path, version: int) -> None:
        """Not while another call is at work."""
        self._weights, self._version = directory, version
        engine = self._engine
        try:
            await engine.load_weights(directory, version)
        except EngineError as error:
            await self._revive(engine, error)

    async def release_memory(self) -> None:
        """An engine that is gone holds none, and is started again by the call that needs it."""
        with contextlib.suppress(EngineError):
            await self._engine.release_memory()

    async def close(self) -> None:
        self._closed = True
        if self._revival is not None:
            self._revival.cancel()
            await asyncio.wait([self._revival])
        await self._engine.close()

    async def _revive(self, engine: MortalEngine, error: EngineError) -> None:
        """Replace `engine` unless another call has done so. Raises `error` where the engine lives: it refused the call; or where
        no restart is left. A caller that is cancelled leaves the restart to those that wait for it too."""
        if engine is not self._engine:
            return
        if self._revival is None or self._revival.done():
            if engine.alive or self._closed or self._restarts == 0:
                raise error
            self._restarts -= 1
            self._revival = asyncio.create_task(self._replace())
        await asyncio.shield(self._revival)

    async def _replace(self) -> None:
        await self._engine.close()
        self._engine = await self._start(self._weights, self._version)
