"""Which keys each query sees, cut into tiles that one matrix product takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Rows = npt.NDArray[np.int64]

TILE_ROWS = 128
TILE_AREA = 1 << 17  # queries times keys of a tile, for one head


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

    @cached_property
    def tiles(self) -> tuple["Tile", ...]:
        return tuple(_tile(self, blocks) for blocks in _groups(_blocks(self)))


@dataclass(frozen=True, slots=True)
class Tile:
    """n blocks of r queries against m keys, filled up where a block has fewer.

    queries `[n * r]`, keys `[n * m]`: rows, any row on filling; results `[n * r]`: the queries, `num_queries` on filling.
    first, last `[n, r]` int32: bounds of the columns that a query sees; None where all see all."""

    shape: tuple[int, int, int]
    queries: Tensor
    results: Tensor
    keys: Tensor
    first: Tensor | None
    last: Tensor | None

    def bias(self, precision: torch.dtype) -> Tensor | None:
        """`[n, 1, r, 1, m]`: minus infinity for the columns that a query does not see, else 0."""
        if self.last is None:
            return None
        columns = torch.arange(self.shape[2], dtype=torch.int32, device=self.last.device)
        hidden = columns > self.last[..., None]
        if self.first is not None:
            hidden |= columns < self.first[..., None]
        bias = torch.zeros(self.shape, dtype=precision, device=hidden.device).masked_fill_(hidden, float("-inf"))
        return bias[:, None, :, None]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """At most TILE_ROWS queries each. query, key: first row; own: column of the key at the first query's place."""

    query: Rows
    rows: Rows
    key: Rows
    columns: Rows
    own: Rows

    def __getitem__(self, chosen: Rows) -> "_Blocks":
        return _Blocks(self.query[chosen], self.rows[chosen], self.key[chosen], self.columns[chosen], self.own[chosen])


def _blocks(spans: Spans) -> _Blocks:
    height = TILE_ROWS if spans.window is None else min(TILE_ROWS, max(spans.window, 64))
    (first_query, queries), (first_key, keys) = spans.queries.T, spans.keys.T
    counts = np.where(keys > 0, -(-queries // height), 0)
    span = np.repeat(np.arange(len(counts)), counts)
    start = (np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)) * height
    rows = np.minimum(height, queries[span] - start)
    own = (keys - queries)[span] + start if spans.causal else keys[span] - 1
    end = own + rows if spans.causal else keys[span]
    skipped = np.zeros_like(own) if spans.window is None else np.maximum(0, own - spans.window + 1)
    return _Blocks(first_query[span] + start, rows, first_key[span] + skipped, end - skipped, own - skipped)


def _groups(blocks: _Blocks) -> Iterator[_Blocks]:
    """Blocks of like sizes, as many as fit a tile."""
    height, width = np.ceil(np.log2(np.maximum(blocks.rows, 64))).astype(np.int64), -(-blocks.columns // TILE_ROWS)
    order = np.lexsort((blocks.rows, width, height))
    borders = np.flatnonzero(np.diff(height[order]) | np.diff(width[order])) + 1
    for alike in np.split(order, borders):
        if len(alike):
            at_once = max(1, TILE_AREA // int(blocks.rows[alike].max() * blocks.columns[alike].max()))
            for begin in range(0, len(alike), at_once):
                yield blocks[alike[begin : begin + at_once]]


def _tile(spans: Spans, blocks: _Blocks) -> Tile:
    height, width = int(blocks.rows.max()), int(blocks.columns.max())
    row = np.minimum(np.arange(height), blocks.rows[:, None] - 1)
    queries = blocks.query[:, None] + row
    results = np.where(np.arange(height) < blocks.rows[:, None], queries, spans.num_queries)
    keys = blocks.key[:, None] + np.minimum(np.arange(width), blocks.columns[:, None] - 1)
    last = blocks.own[:, None] + row * spans.causal
    first = np.zeros_like(last) if spans.window is None else np.maximum(0, last - spans.window + 1)

    def bound(columns: Rows, hides: np.bool_) -> Tensor | None:
        return torch.as_tensor(columns, dtype=torch.int32, device=spans.device) if hides else None

    def index(rows: Rows) -> Tensor:
        return torch.as_tensor(rows.ravel(), device=spans.device)

    hides_first = (first > 0).any()
    return Tile(
        shape=(len(blocks.rows), height, width),
        queries=index(queries),
        results=index(results),
        keys=index(keys),
        first=bound(first, hides_first),
        last=bound(last, hides_first | (last < width - 1).any()),
    )
