"""The pods of one shape: those in use, those kept ready, and those who wait for one."""

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass, field

from gagar_sandbox.kubernetes.live import LivePod
from gagar_sandbox.kubernetes.shape import Shape

BUSY_PER_SPARE = 8


@dataclass
class Shelf:
    """`idle` are the pods that are ready, with the moment since when, the latest last."""

    shape: Shape
    spare: int
    idle: list[tuple[LivePod, float]] = field(default_factory=list)
    waiting: deque[asyncio.Future[LivePod]] = field(default_factory=deque)
    starting: set[asyncio.Task[None]] = field(default_factory=set)
    busy: int = 0

    @property
    def wanted(self) -> int:
        """How many pods more should start: one for each who waits, and one spare for each `BUSY_PER_SPARE` in use, `spare` at
        most. So what starts or is idle is never more than that, but for what came back from use."""
        spares = min(self.spare, math.ceil(self.busy / BUSY_PER_SPARE))
        return max(0, len(self.waiting) + spares - len(self.idle) - len(self.starting))

    def take(self) -> LivePod | None:
        """The pod that was used last."""
        return self.idle.pop()[0] if self.idle else None

    def put(self, pod: LivePod) -> None:
        """To who has waited longest, or kept ready."""
        if place := self._first_waiting():
            place.set_result(pod)
        else:
            self.idle.append((pod, time.monotonic()))

    def fail(self, error: Exception) -> None:
        """Who has waited longest is told, if anybody waits."""
        if place := self._first_waiting():
            place.set_exception(error)

    def leave(self, place: asyncio.Future[LivePod]) -> None:
        """Wait no longer."""
        if place in self.waiting:
            self.waiting.remove(place)

    def _first_waiting(self) -> asyncio.Future[LivePod] | None:
        while self.waiting:
            place = self.waiting.popleft()
            if not place.done():
                return place
        return None

    def stale(self, idle_s: float) -> list[LivePod]:
        """Take out what has been idle for so long, or has ended."""
        limit = time.monotonic() - idle_s
        gone = [pod for pod, since in self.idle if since < limit or pod.ended]
        self.idle = [(pod, since) for pod, since in self.idle if pod not in gone]
        return gone
