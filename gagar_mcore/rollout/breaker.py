"""Whether sandboxes or the engine are out, or a task is one that cannot be run."""

import asyncio
from collections import Counter

LONGEST_PAUSE_S = 60.0


class Breaker:
    """Failures of `outage_tasks` different tasks in a row, with no group in between that ended well, are an outage. While one
    lasts, a group is begun after 1, 2, 4 ... seconds, at most a minute each, and the first that ends well is the end of it.
    An outage that has lasted for `patience_s` is given up: groups are begun as ever, and their failures are final.

    `failures` counts by task what is laid to its charge: its failures since it last ended well, those while an outage lasted left
    out. Time is that of the running event loop."""

    def __init__(self, outage_tasks: int, patience_s: float) -> None:
        self.failures: Counter[str] = Counter()
        self.outages = 0
        self._outage_tasks, self._patience_s = outage_tasks, patience_s
        self._streak: Counter[str] = Counter()
        self._since: float | None = None
        self._next_s = 0.0
        self._pause_s = 1.0

    @property
    def is_open(self) -> bool:
        return self._since is not None

    @property
    def given_up(self) -> bool:
        return self._since is not None and _now() >= self._since + self._patience_s

    def wait_s(self) -> float:
        """How long to wait before a group is begun; 0 where there is no reason to wait."""
        return max(0.0, self._next_s - _now()) if self.is_open and not self.given_up else 0.0

    def begun(self) -> None:
        """A group was begun. While an outage lasts it is a trial, and the next one has to wait."""
        if self.is_open:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._next_s = _now() + self._pause_s

    def succeeded(self, task: str) -> None:
        del self.failures[task]
        self._streak.clear()
        self._since = None

    def failed(self, task: str) -> None:
        if self.is_open:
            return
        self.failures[task] += 1
        self._streak[task] += 1
        if len(self._streak) >= self._outage_tasks:
            self.outages += 1
            self._since, self._pause_s = _now(), 1.0
            self._next_s = self._since + self._pause_s


def _now() -> float:
    return asyncio.get_running_loop().time()
