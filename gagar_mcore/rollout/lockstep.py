"""Lockstep: the sessions of one group take their turns together, so that each engine call depends on the group alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gagar_mcore.engine.protocol import Engine, GenerateRequest, Generation


@dataclass(slots=True)
class LockstepEngine:
    """An engine for exactly the sessions in `session_ids`: a turn is generated, as one call in that order, once every
    session that is still running has asked for it. A session leaves through `end_session`."""

    engine: Engine
    session_ids: list[str]
    _waiting: dict[str, tuple[GenerateRequest, asyncio.Future[Generation]]] = field(default_factory=dict)
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        [request] = requests
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting[request.session_id] = (request, future)
        self._start_when_complete()
        return [await future]

    async def end_session(self, session_id: str) -> None:
        self.session_ids.remove(session_id)
        self._waiting.pop(session_id, None)
        self._start_when_complete()
        await self.engine.end_session(session_id)

    async def load_weights(self, directory: Path, version: int) -> None:
        raise NotImplementedError("weights are loaded between groups, on the engine itself")

    async def release_memory(self) -> None:
        raise NotImplementedError("memory is released between groups, on the engine itself")

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()

    def _start_when_complete(self) -> None:
        if not self._waiting or len(self._waiting) < len(self.session_ids):
            return
        turn = [self._waiting.pop(i) for i in list(self.session_ids)]
        call = asyncio.create_task(self._call(turn))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, turn: list[tuple[GenerateRequest, asyncio.Future[Generation]]]) -> None:
        try:
            answers = await self.engine.generate([request for request, _ in turn])
        except BaseException as error:
            for _, future in turn:
                if not future.done():
                    future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        for (_, future), answer in zip(turn, answers, strict=True):
            if not future.done():
                future.set_result(answer)
