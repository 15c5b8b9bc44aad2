"""Which keys each query sees, cut into tiles that one matrix product takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gagar_mcore.models.tile_attention import CAUSAL, Mask, tile_area

Rows = npt.NDArray[np.int64]
Index = Tensor | slice

TILE_ROWS = 128


@dataclass(frozen=True)
class Spans:
    """S runs of consecutive queries, each with the run of consecutive keys that it looks at.

    queries, keys `[S, 2]`: first row and number of rows; num_queries: rows in all. Where `causal`, the last query of a span
    stands at its last key, and a query sees the keys up to its own place, at most the last `window` of them; else all.
    """

    queries: Rows
    keys: Rows
    num_queries: int
    device: torch.device
    causal: bool = True
    window: int | None = None

    def whole(self, num_keys: int) -> "Tile | None":
        """The tile that takes all queries and keys as they lie, if there is one."""
        if len(self.tiles) == 1:
            (tile,) = self.tiles
            taken = [rows for rows in (tile.results, tile.keys) if isinstance(rows, slice)]
            return tile if taken == [slice(0, self.num_queries), slice(0, num_keys)] else None
        return None

    @cached_property
    def tiles(self) -> tuple["Tile", ...]:
        return tuple(_tile(self, blocks) for blocks in _groups(_blocks(self), tile_area(self.device)))


@dataclass(frozen=True, slots=True)
class Tile:
    """n `blocks` of r queries against m keys, filled up where a block has fewer.

    queries `[n * r]`, keys `[n * m]`: rows, any row on filling; results `[n * r]`: the queries, `num_queries` on filling. Slices
    where they are consecutive. own: column of the key at the first query's place, the same in all blocks."""

    blocks: int
    shape: tuple[int, int]
    queries: Index
    results: Index
    keys: Index
    own: int
    causal: bool
    window: int | None

    def mask(self, like: Tensor) -> Mask:
        """As `tile_attention` takes it, of the type of `like`."""
        if not self.causal:
            return None
        if self.own == 0 and (self.window is None or self.window >= self.shape[1]):
            return CAUSAL
        row, column = (torch.arange(count, dtype=torch.int32, device=like.device) for count in self.shape)
        last = self.own + row[:, None]
        hidden = column > last
        if self.window is not None:
            hidden |= column <= (last - self.window).clamp(max=len(column) - 2)  # a row of filling sees something too
        return like.new_zeros(self.shape).masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """At most TILE_ROWS queries each. query, key: first row; own: as in `Tile`, the last column where not causal."""

    query: Rows
    rows: Rows
    key: Rows
    columns: Rows
    own: Rows

    def __getitem__(self, chosen: Rows) -> "_Blocks":
        return _Blocks(self.query[chosen], self.rows[chosen], self.key[chosen], self.columns[chosen], self.own[chosen])


def _blocks(spans: Spans) -> _Blocks:
    (first_query, queries), (first_key, keys) = spans.queries.T, spans.keys.T
    counts = np.where(keys > 0, -(-queries // TILE_ROWS), 0)
    span = np.repeat(np.arange(len(counts)), counts)
    start = (np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)) * TILE_ROWS
    rows = np.minimum(TILE_ROWS, queries[span] - start)
    own = (keys - queries)[span] + start if spans.causal else keys[span] - 1
    end = own + rows if spans.causal else keys[span]
    skipped = np.zeros_like(own) if spans.window is None else np.maximum(0, own - spans.window + 1)
    return _Blocks(first_query[span] + start, rows, first_key[span] + skipped, end - skipped, own - skipped)


def _groups(blocks: _Blocks, area: int) -> Iterator[_Blocks]:
    """Blocks of like sizes and one mask, as many as fit a tile of such an `area`."""
    height = np.ceil(np.log2(np.maximum(blocks.rows, 64))).astype(np.int64)
    order = np.lexsort((blocks.rows, height, blocks.own))
    borders = np.flatnonzero(np.diff(height[order]) | np.diff(blocks.own[order])) + 1
    for alike in np.split(order, borders):
        if len(alike):
            at_once = max(1, area // int(blocks.rows[alike].max() * blocks.columns[alike].max()))
            for begin in range(0, len(alike), at_once):
                yield blocks[alike[begin : begin + at_once]]


def _tile(spans: Spans, blocks: _Blocks) -> Tile:
    rows, columns = int(blocks.rows.max()), int(blocks.columns.max())
    row = np.minimum(np.arange(rows), blocks.rows[:, None] - 1)
    queries = blocks.query[:, None] + row
    results = np.where(np.arange(rows) < blocks.rows[:, None], queries, spans.num_queries)
    keys = blocks.key[:, None] + np.minimum(np.arange(columns), blocks.columns[:, None] - 1)

    def index(picked: Rows) -> Index:
        return _index(picked.ravel(), spans.device)

    own = int(blocks.own[0])
    return Tile(len(blocks.rows), (rows, columns), index(queries), index(results), index(keys), own, spans.causal, spans.window)


def _index(rows: Rows, device: torch.device) -> Index:
    first, last = int(rows[0]), int(rows[-1])
    if np.array_equal(rows, np.arange(first, last + 1)):
        return slice(first, last + 1)
    return torch.as_tensor(rows, device=device)
