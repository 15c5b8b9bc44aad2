"""Several engines behind one: each session stays with the one that remembers it, and what one loses another goes on with."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gagar_mcore.engine.member import RESTARTS, Member, Start
from gagar_mcore.engine.partial import NOTHING, EngineLost, join, remainder
from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation

ATTEMPTS = 4  # to have one call answered
LOOK_S = 5.0  # between two looks for members that have come
PAUSE_S = 0.1

NONE_FOUND = "no engine is found; start `gagar serve policy`, which writes its address where engine.server.attach looks for it"

Found = Callable[[], Mapping[str, Start]]


@dataclass(frozen=True, slots=True)
class _Waiting:
    session_id: str
    count: int
    member: asyncio.Future[Member] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Fleet:
    """An Engine. found: how each member is started, by name; it is looked at again now and then, for members that come later.

    A call goes to the member that its session was with, for the cache that is there; a session without one to the member with
    the fewest. A member has at most `room` requests, calls beyond wait in order. One that dies is started again with the newest
    weights, `restarts` times where it does not stay up; meanwhile the others go on with what it was asked, from the last token
    that arrived. A call for which there is no member fails after `patience_s`, and at once where all are given up."""

    def __init__(
        self, found: Found, weights: Path, version: int, room: int, patience_s: float, restarts: float = RESTARTS
    ) -> None:
        self._found = found
        self._newest = weights, version
        self._room, self._patience_s, self._restarts = room, patience_s, restarts
        self._members: dict[str, Member] = {}
        self._homes: dict[str, Member] = {}
        self._waiting: deque[_Waiting] = deque()
        self._looking: asyncio.Task[None] | None = None
        self._lost_at = 0.0  # the last member that was
        self._closed = False

    async def start(self) -> None:
        """Members that do not start are tried again later. Raises EngineError where not one does."""
        self._members = {name: Member(start, self._restarts) for name, start in self._found().items()}
        members = self._members.values()
        try:
            failures = await asyncio.gather(*(self._begin(member) for member in members))
        except BaseException:
            await self.close()
            raise
        if not self.alive:
            await self.close()
            raise next(filter(None, failures), EngineError(NONE_FOUND))
        for member, failure in zip(members, failures, strict=True):
            if failure is not None:
                self._revive(member, str(failure))
        self._looking = asyncio.create_task(self._look())

    @property
    def alive(self) -> int:
        """Members that answer."""
        return sum(member.engine is not None for member in self._members.values())

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """All requests go to one member."""
        said = [NOTHING for _ in requests]
        for attempts_left in reversed(range(ATTEMPTS)):
            broken = [i for i, answer in enumerate(said) if answer.finish_reason == "abort"]
            if not broken:
                break
            try:
                answers = await self._ask([remainder(requests[i], said[i]) for i in broken])
            except EngineLost as lost:
                if not attempts_left:
                    raise
                _extend(said, broken, lost.said)
            else:
                _extend(said, broken, answers)
                break
        return said

    async def end_session(self, session_id: str) -> None:
        """It is over with every member that it was with, and with those that have lost it as well."""
        home = self._homes.pop(session_id, None)
        if home is not None:
            home.sessions -= 1
        for engine in [member.engine for member in self._members.values() if member.engine is not None]:
            with contextlib.suppress(EngineError):
                await engine.end_session(session_id)

    async def load_weights(self, directory: Path, version: int) -> None:
        """A member that fails to take them is started anew, with them. Raises EngineError where a living one refuses them, or no
        member is left."""
        self._newest = directory, version
        refusals = await asyncio.gather(*(self._load(member) for member in self._members.values()))
        for refusal in refusals:
            if refusal is not None:
                raise refusal
        await self._some_member()

    async def release_memory(self) -> None:
        """A member that is gone holds none."""
        engines = [member.engine for member in self._members.values() if member.engine is not None]
        for result in await asyncio.gather(*(engine.release_memory() for engine in engines), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, EngineError):
                raise result

    async def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(member.close() for member in self._members.values()))
        self._dispatch()

    async def _ask(self, requests: list[GenerateRequest]) -> list[Generation]:
        """Raises EngineLost where the member dies."""
        member = await self._admit(requests[0].session_id, len(requests))
        engine = member.engine
        try:
            if engine is None:  # since the call was admitted
                raise EngineError(member.obituary)
            return await engine.generate(requests)
        except EngineError as error:
            if engine is not None and engine.alive:
                raise
            if engine is not None and member.engine is engine:
                self._revive(member, str(error))
            raise error if isinstance(error, EngineLost) else EngineLost(str(error), [NOTHING for _ in requests]) from error
        finally:
            self._release(member, len(requests))

    async def _admit(self, session_id: str, count: int) -> Member:
        """Where a session's `count` requests go, once there is room for them. Raises EngineError where there is no member."""
        ahead = _Waiting(session_id, count)
        self._waiting.append(ahead)
        self._dispatch()
        try:
            while not (await asyncio.wait([ahead.member], timeout=self._patience_s))[0]:
                if not self.alive and time.monotonic() >= self._lost_at + self._patience_s:
                    raise EngineError(f"no engine within {self._patience_s:g} s: {self._obituary()}")
        except BaseException:
            if not ahead.member.cancel() and ahead.member.exception() is None:
                self._release(ahead.member.result(), count)
            raise
        return ahead.member.result()

    def _dispatch(self) -> None:
        """Give the calls that wait to members with room, in order."""
        if not self.alive and self._is_over():
            failure = EngineError(self._obituary())
            while self._waiting:
                if not (call := self._waiting.popleft().member).done():
                    call.set_exception(failure)
        while self._waiting:
            first = self._waiting[0]
            if not first.member.done():
                if (member := self._choice(first.session_id, first.count)) is None:
                    return
                self._settle(first.session_id, member)
                member.at_work += first.count
                first.member.set_result(member)
            self._waiting.popleft()

    def _release(self, member: Member, count: int) -> None:
        member.at_work -= count
        self._dispatch()

    def _choice(self, session_id: str, count: int) -> Member | None:
        def has_room(member: Member) -> bool:
            return member.engine is not None and (member.at_work == 0 or member.at_work + count <= self._room)

        home = self._homes.get(session_id)
        if home is not None and has_room(home):
            return home
        free = filter(has_room, self._members.values())
        return min(free, key=lambda member: (member.sessions, member.at_work), default=None)

    def _settle(self, session_id: str, member: Member) -> None:
        home = self._homes.get(session_id)
        if home is not member:
            if home is not None:
                home.sessions -= 1
            self._homes[session_id] = member
            member.sessions += 1

    def _is_over(self) -> bool:
        """Where no member is found, one may come."""
        return self._closed or (bool(self._members) and all(member.given_up for member in self._members.values()))

    async def _some_member(self) -> None:
        """Wait until there is one. Raises EngineError."""
        deadline = time.monotonic() + self._patience_s
        while not self.alive:
            if self._is_over():
                raise EngineError(self._obituary())
            if time.monotonic() > deadline:
                raise EngineError(f"no engine within {self._patience_s:g} s: {self._obituary()}")
            await asyncio.sleep(PAUSE_S)

    def _obituary(self) -> str:
        obituaries = dict.fromkeys(member.obituary for member in self._members.values() if member.obituary)
        return "the engine is closed" if self._closed else "; ".join(obituaries) or NONE_FOUND

    async def _begin(self, member: Member) -> EngineError | None:
        try:
            await member.begin(lambda: self._newest)
        except EngineError as error:
            return error
        return None

    async def _load(self, member: Member) -> EngineError | None:
        """The refusal of a member that lives."""
        engine = member.engine
        if engine is None:
            return None
        try:
            await engine.load_weights(*self._newest)
        except EngineError as error:
            if engine.alive:
                return error
            if member.engine is engine:
                self._revive(member, str(error))
        return None

    def _revive(self, member: Member, reason: str) -> None:
        self._lost_at = time.monotonic()
        if self._closed:
            member.engine = None
            return
        member.revive(reason, lambda: self._newest, self._dispatch)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            found = self._found()
            for name in found.keys() - self._members.keys():
                self._members[name] = Member(found[name], self._restarts)
                self._revive(self._members[name], "not yet started")
            for name in self._members.keys() - found.keys():
                if self._members[name].engine is None:
                    await self._members.pop(name).close()


def _extend(said: list[Generation], broken: list[int], answers: Sequence[Generation]) -> None:
    for i, answer in zip(broken, answers, strict=True):
        said[i] = join(said[i], answer)
