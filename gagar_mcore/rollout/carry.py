"""Groups that a step leaves under way, so that a long tail holds up no step; the next ones go on with them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gagar_mcore.tasks.mix import Draw

AnyResult = TypeVar("AnyResult")


@dataclass(frozen=True, slots=True)
class Left(Generic[AnyResult]):
    """task: at work on it, or done; None where nobody has begun it, or who did was killed: it goes on with what is on disk.
    begun: the step in which work on it began, None where none has."""

    draw: Draw
    task: asyncio.Future[AnyResult] | None = None
    begun: int | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """A group that is left, as a batch's manifest tells those who resume: it was drawn in `step` as number `index`, and begun in
    the step `begun`, or not yet."""

    step: int
    index: int
    task: str
    begun: int | None = None


class Carry(Generic[AnyResult]):
    """`most`: how many steps after the one in which it was begun a group may end. Its oldest tokens are that many versions old
    then. `step` is the one that is being collected."""

    def __init__(self, most: int, left: Iterable[Left[AnyResult]] = ()) -> None:
        self._most = most
        self._left = list(left)
        self.step = 0

    async def begin(self, step: int) -> int:
        """Give up the groups that are too old for `step`; their number."""
        self.step = step
        old = [left for left in self._left if left.begun is not None and step - left.begun > self._most]
        self._left = [left for left in self._left if left not in old]
        await _cancel(old)
        return len(old)

    def take(self) -> list[Left[AnyResult]]:
        left, self._left = self._left, []
        return left

    def put(self, left: Left[AnyResult]) -> None:
        self._left.append(left)

    def carried(self) -> list[Carried]:
        told = (Carried(x.draw.step, x.draw.index, x.draw.task.key, x.begun) for x in self._left)
        return sorted(told, key=lambda carried: (carried.step, carried.index))

    @property
    def oldest(self) -> int | None:
        """The first step from which groups are left."""
        return min((left.draw.step for left in self._left), default=None)

    async def close(self) -> None:
        await _cancel(self.take())


async def _cancel(left: Iterable[Left[AnyResult]]) -> None:
    tasks = [each.task for each in left if each.task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
