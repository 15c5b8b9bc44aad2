"""Groups that are drawn and not begun."""

import heapq
from collections.abc import Mapping

from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw


class Pending:
    """Lowest rank first, as far as the quotas of the sources allow. Ranks are unlike."""

    def __init__(self) -> None:
        self._ready: dict[str, list[tuple[Rank, Draw]]] = {}  # by source
        self._later: list[tuple[float, Rank, Draw]] = []

    def __len__(self) -> int:
        return len(self._later) + sum(map(len, self._ready.values()))

    def drain(self) -> list[Draw]:
        """All of them, in no order."""
        draws = [draw for _, _, draw in self._later] + [draw for heap in self._ready.values() for _, draw in heap]
        self._later, self._ready = [], {}
        return draws

    def add(self, draw: Draw, rank: Rank) -> None:
        heapq.heappush(self._ready.setdefault(draw.source.name, []), (rank, draw))

    def add_later(self, draw: Draw, rank: Rank, when_s: float) -> None:
        heapq.heappush(self._later, (when_s, rank, draw))

    def release(self, now_s: float) -> None:
        """What had to wait until now is ready."""
        while self._later and self._later[0][0] <= now_s:
            _, rank, draw = heapq.heappop(self._later)
            self.add(draw, rank)

    def wait_s(self, now_s: float) -> float | None:
        """Until the next one is ready that is not; None where there is none."""
        return max(0.0, self._later[0][0] - now_s) if self._later else None

    def pop(self, running: Mapping[str, int]) -> Draw | None:
        """The next group to begin, beside so many `running` of each source; None where there is none."""
        heads = [heap for heap in self._ready.values() if heap and _has_room(heap[0][1], running)]
        return heapq.heappop(min(heads, key=lambda heap: heap[0][0]))[1] if heads else None


def _has_room(draw: Draw, running: Mapping[str, int]) -> bool:
    quota = draw.source.quota
    return quota is None or running.get(draw.source.name, 0) < quota
