"""Trying again, later and later, and not all at the same moment."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gagar_sandbox.kubernetes.errors import ApiError

T = TypeVar("T")


@dataclass(slots=True)
class Backoff:
    """Naps between tries: at random below a bound that doubles, and at least what the server asked for. They end `deadline_s`
    after the first try."""

    deadline_s: float
    first_s: float = 0.1
    most_s: float = 10.0
    _bound_s: float = field(init=False)
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._bound_s = self.first_s
        self._end = time.monotonic() + self.deadline_s

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def next_s(self, at_least_s: float = 0.0) -> float | None:
        """The length of the next nap; None where the deadline comes before its end."""
        length = at_least_s + random.uniform(0, self._bound_s)
        self._bound_s = min(2 * self._bound_s, self.most_s)
        return length if length <= self.left_s else None

    async def nap(self, at_least_s: float = 0.0, stopped: asyncio.Event | None = None) -> bool:
        """False, at once, where the deadline comes before its end, and where it is `stopped`."""
        length = self.next_s(at_least_s)
        if length is None:
            return False
        try:
            await asyncio.wait_for((stopped or asyncio.Event()).wait(), length)
        except TimeoutError:
            return True
        return False


async def persist(
    request: Callable[[], Awaitable[T]],
    deadline_s: float,
    on_retry: Callable[[ApiError], None],
    stopped: asyncio.Event | None = None,
) -> T:
    """Until the request succeeds, fails for good, the deadline has come or it is `stopped`. Raises its last ApiError."""
    backoff = Backoff(deadline_s)
    while True:
        try:
            return await request()
        except ApiError as error:
            if not error.passing or not await backoff.nap(error.retry_after_s or 0.0, stopped):
                raise
            on_retry(error)
