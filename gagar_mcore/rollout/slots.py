"""Room for live sessions, given away by rank."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

Rank = tuple[float, ...]
FIRST: Rank = ()


class Slots:
    """`total` slots. Of those who wait the lowest rank is served first, of equal ranks the one that came first; nobody with a
    higher rank overtakes it, however little it asks for."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._waiting: list[tuple[Rank, int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._busy_s = 0.0
        self._counted_at: float | None = None

    @asynccontextmanager
    async def hold(self, slots: int, rank: Rank = FIRST) -> AsyncIterator[None]:
        """Have `slots` of them for a while, all at once. Raises ValueError where there are not so many."""
        await self._acquire(slots, rank)
        try:
            yield
        finally:
            self._give_back(slots)

    def busy_seconds(self) -> float:
        """Slot-seconds that sessions have held so far, on the clock of the event loop."""
        now = asyncio.get_running_loop().time()
        if self._counted_at is not None:
            self._busy_s += (now - self._counted_at) * (self.total - self.free)
        self._counted_at = now
        return self._busy_s

    def idle_share(self, busy_before_s: float, seconds: float) -> float:
        """Of the slots, over the last `seconds`, at whose beginning `busy_seconds` was `busy_before_s`."""
        return 1.0 - (self.busy_seconds() - busy_before_s) / max(seconds * self.total, 1e-9)

    async def _acquire(self, slots: int, rank: Rank) -> None:
        if slots > self.total:
            raise ValueError(f"{slots} sessions must run at once, but there is room for {self.total}")
        if slots <= self.free and not self._waiting:
            self._take(slots)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), slots, granted))
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(slots)
            else:
                granted.cancel()
                self._serve()
            raise

    def _take(self, slots: int) -> None:
        self.busy_seconds()
        self.free -= slots

    def _give_back(self, slots: int) -> None:
        self.busy_seconds()
        self.free += slots
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            _, _, slots, granted = self._waiting[0]
            if not granted.done():
                if slots > self.free:
                    return
                self._take(slots)
                granted.set_result(None)
            heapq.heappop(self._waiting)
