"""A key-value cache in which a token's slot is its position.

Rows of unequal length share a batch without padding holes: what padding writes goes to a scratch slot, and every mask
follows from positions. (The caches of `transformers` count padded slots as positions of a sliding window.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gagar_mcore.models.config import LayerType, ModelConfig

GLOBAL: LayerType = "full_attention"
SLIDING: LayerType = "sliding_attention"


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of some rows. rows: `[n]` cache rows; ids: `[n, length]`, padded on the right; starts, lengths: `[n]`,
    position of each row's first new token and the number of its new tokens."""

    rows: Tensor
    ids: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> "Chunk":
        lengths = [len(t) for t in tokens]
        ids = [[*t, *[0] * (max(lengths) - len(t))] for t in tokens]
        return cls(torch.tensor(rows), torch.tensor(ids), torch.tensor(starts), torch.tensor(lengths))

    def to(self, device: torch.device) -> "Chunk":
        return Chunk(*(tensor.to(device) for tensor in (self.rows, self.ids, self.starts, self.lengths)))

    @property
    def positions(self) -> Tensor:
        """`[n, length]`"""
        return self.starts[:, None] + torch.arange(self.ids.shape[1], device=self.ids.device)


@dataclass(frozen=True, slots=True)
class _Access:
    """Where one kind of layer writes and reads in this step: flat indices `[n * heads * length]`, `[n * heads * keys]`."""

    write: Tensor
    read: Tensor
    shape: tuple[int, int, int]


class PositionCache:
    """Keys and values `[rows, heads, max_context + 1 slots, dim]` of each layer; the last slot is scratch.

    `begin` names the tokens of the coming forward pass, on the cache's device; `update` is what each attention layer then calls.
    """

    def __init__(self, model: ModelConfig, rows: int, max_context: int, device: torch.device) -> None:
        self.layer_types = model.layer_types
        self.window = model.sliding_window
        self.max_context = max_context
        self.query_heads = model.num_heads
        self.heads = {GLOBAL: model.kv_heads, SLIDING: model.sliding_kv_heads}
        sizes = [rows * self.heads[kind] * (max_context + 1) for kind in self.layer_types]
        self._device = device
        self._keys = [torch.zeros(size, model.head_dim, device=device) for size in sizes]
        self._values = [torch.zeros(size, model.v_head_dim, device=device) for size in sizes]
        self._access: dict[LayerType, _Access] = {}

    def begin(self, chunk: Chunk) -> dict[LayerType, Tensor]:
        """Prepare for `chunk`; returns the additive mask of each kind of layer, `[n * heads, queries a head * length, keys]`."""
        ends = chunk.starts + chunk.lengths
        # Padding looks where its row's last token looks: at nothing that an earlier user of the row has left behind.
        queries = torch.minimum(chunk.positions, ends[:, None] - 1)
        masks: dict[LayerType, Tensor] = {}
        for kind in set(self.layer_types):
            keys = self._key_positions(chunk, int(ends.max()), kind)
            mask = _additive_mask(queries, keys, self.window if kind == SLIDING else None)
            heads = self.heads[kind]
            masks[kind] = mask.repeat(1, heads, self.query_heads // heads, 1).flatten(0, 1)
            self._access[kind] = self._access_of(chunk, queries, keys, heads)
        return masks

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store keys and values `[n, heads, length, dim]` of the new tokens; returns those that the step may look at."""
        access = self._access[self.layer_types[layer]]
        stored_keys, stored_values = self._keys[layer], self._values[layer]
        stored_keys.index_copy_(0, access.write, keys.reshape(-1, keys.shape[-1]))
        stored_values.index_copy_(0, access.write, values.reshape(-1, values.shape[-1]))
        return (
            stored_keys.index_select(0, access.read).view(*access.shape, -1),
            stored_values.index_select(0, access.read).view(*access.shape, -1),
        )

    def _range(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self._device)

    def _key_positions(self, chunk: Chunk, longest: int, kind: LayerType) -> Tensor:
        """`[n or 1, keys]`: all positions so far, or for sliding layers those that any new token can see (negative: none)."""
        reach = self.window - 1 + chunk.ids.shape[1]
        if kind == SLIDING and reach < longest:
            return chunk.starts[:, None] + self._range(1 - self.window, chunk.ids.shape[1])
        return self._range(0, longest)[None]

    def _access_of(self, chunk: Chunk, queries: Tensor, keys: Tensor, heads: int) -> _Access:
        slots = self.max_context + 1
        base = (chunk.rows[:, None] * heads + self._range(0, heads))[:, :, None] * slots
        padding = self._range(0, chunk.ids.shape[1]) >= chunk.lengths[:, None]
        write = base + queries.masked_fill(padding, self.max_context)[:, None]
        read = base + keys.clamp(0, self.max_context)[:, None]
        return _Access(write.flatten(), read.flatten(), (read.shape[0], heads, read.shape[2]))


def _additive_mask(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """`[n, 1, length, keys]`: 0 where a query sees a key, else -inf. A key is seen from its position on, `window` long."""
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    hidden = (distance < 0) | (keys[:, None, None, :] < 0)
    if window is not None:
        hidden |= distance >= window
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))
