"""Where the keys just before each zigzag chunk lie."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gagar_mcore.models.spans import Rows


@dataclass(frozen=True)
class HaloPlan:
    """Chunk r of a sequence continues the first chunk of rank r - 1, chunk 2 cp - 1 - r the second of rank r + 1 or, on the last
    rank, its own first. Of sequences whose chunks are shorter than the halo, every rank gathers everything.

    bounds `[S + 1]`: of this rank's parts, two equal chunks each. reach: keys of a halo. Rows count as in `Halo.order`."""

    bounds: Rows
    reach: int
    rank: int
    size: int

    @cached_property
    def chunk(self) -> Rows:
        """Length of the chunks of each sequence."""
        return np.diff(self.bounds) // 2

    @cached_property
    def long(self) -> np.ndarray:
        """Sequences whose halo is the end of one chunk."""
        return np.flatnonzero(self.chunk >= self.reach)

    @cached_property
    def short(self) -> np.ndarray:
        return np.flatnonzero(self.chunk < self.reach)

    def chunk_rows(self) -> Rows:
        """`[2 S, 2]`: first row and length of this rank's chunks."""
        starts = np.stack([self.bounds[:-1], self.bounds[:-1] + self.chunk], axis=1)
        return np.stack([starts.ravel(), np.repeat(self.chunk, 2)], axis=1)

    def tail(self, half: int) -> Rows:
        """Own rows at the end of the first or second chunk of each long sequence."""
        ends = self.bounds[self.long] + (half + 1) * self.chunk[self.long]
        return (ends[:, None] + np.arange(-self.reach, 0)).ravel()

    def short_rows(self) -> Rows:
        """Own rows of the short sequences."""
        rows = [np.arange(self.bounds[s], self.bounds[s + 1]) for s in self.short]
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows])

    def halos(self) -> list[Rows]:
        """The halo of each chunk, in the order of `chunk_rows`."""
        halos: dict[int, tuple[Rows, Rows]] = {}
        for nth, sequence in enumerate(self.long):
            halos[sequence] = self._before_first(nth), self._before_second(nth)
        offset = 0
        for sequence in self.short:
            chunk = int(self.chunk[sequence])
            indices = self.rank, 2 * self.size - 1 - self.rank
            first, second = (self._gathered(index, chunk, offset) for index in indices)
            halos[sequence] = first, second
            offset += 2 * chunk
        return [halo for sequence in range(len(self.chunk)) for halo in halos[sequence]]

    def _before_first(self, nth: int) -> Rows:
        """nth: of the long sequences."""
        start = int(self.bounds[-1]) + nth * self.reach
        return np.arange(start, start + self.reach if self.rank > 0 else start)

    def _before_second(self, nth: int) -> Rows:
        if self.rank == self.size - 1:
            return self.tail(0)[nth * self.reach : (nth + 1) * self.reach]
        start = int(self.bounds[-1]) + (len(self.long) + nth) * self.reach
        return np.arange(start, start + self.reach)

    def _gathered(self, index: int, chunk: int, offset: int) -> Rows:
        """Before chunk `index` of a short sequence whose part begins at `offset` of what each rank sends."""
        places = np.arange(max(0, index * chunk - self.reach), index * chunk)
        chunks = places // max(chunk, 1)
        owner = np.minimum(chunks, 2 * self.size - 1 - chunks)
        within = offset + (chunks >= self.size) * chunk + places % max(chunk, 1)
        sent = int(2 * self.chunk[self.short].sum())
        return int(self.bounds[-1]) + 2 * len(self.long) * self.reach + owner * sent + within
