"""How published MiMo-V2 checkpoints store the projections of queries, keys and values.

They are cut into as many shards as global layers have key-value heads; a shard holds the rows `[queries | keys | values]` of its
heads and is quantised by itself, its last block of 128 rows ragged. Checkpoints with one fused tensor hold one shard after
another. Those with three hold the queries of all shards, then in other tensors their keys and their values, and deal out the rows
of scales in the same way: each block belongs to the first of the three that has a row in it, so values can depend on a scale that
is stored with the keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.weights import fp8

PARTS = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class QkvShards:
    """count: number of shards. rows: those of queries, keys and values in one of them."""

    count: int
    rows: tuple[int, int, int]

    @classmethod
    def of_layer(cls, model: ModelConfig, layer: int) -> "QkvShards":
        count = model.kv_heads
        queries, groups = model.num_heads // count, model.layer_kv_heads(layer) // count
        return cls(count, (queries * model.head_dim, groups * model.head_dim, groups * model.v_head_dim))

    @property
    def blocks(self) -> int:
        """Rows of scales of one shard."""
        return fp8.blocks(sum(self.rows))

    @property
    def dealt_blocks(self) -> tuple[int, int, int]:
        """Rows of scales that are stored with the queries, the keys and the values of one shard."""
        ends = [fp8.blocks(end) for end in accumulate(self.rows)]
        return ends[0], ends[1] - ends[0], ends[2] - ends[1]

    @property
    def plain_blocks(self) -> tuple[int, int, int]:
        """Rows of scales of three whole matrices, each quantised without regard to shards."""
        queries, keys, values = (fp8.blocks(self.count * rows) for rows in self.rows)
        return queries, keys, values

    @property
    def deals_scales(self) -> bool:
        """Whether three separate tensors are quantised by shards: not where that gives one of them no scales of its own, nor
        where as many rows of scales as without shards would leave open which of the two was done."""
        dealt = tuple(self.count * blocks for blocks in self.dealt_blocks)
        return min(dealt) > 0 and dealt != self.plain_blocks

    def span(self, part: int) -> tuple[int, int]:
        """First row in a shard of queries, keys or values (0, 1, 2), and the row behind their last."""
        start = sum(self.rows[:part])
        return start, start + self.rows[part]

    def fuse(self, parts: Sequence[Tensor]) -> Tensor:
        """One shard after another, from whole queries, keys and values."""
        return torch.cat([part.unflatten(0, (self.count, -1)) for part in parts], dim=1).flatten(0, 1)

    def split(self, fused: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Undo `fuse`; sizes: rows of queries, keys and values in a shard."""
        return [part.flatten(0, 1) for part in fused.unflatten(0, (self.count, -1)).split(list(sizes), dim=1)]

    def dequantize_part(self, part: int, values: Tensor, scales: Tensor) -> Tensor:
        """The rows of queries, keys or values of one shard, float32. values: these rows; scales: `[blocks, C]` of the shard."""
        start, stop = self.span(part)
        first = start // fp8.BLOCK
        return fp8.dequantize(values, scales[first : fp8.blocks(stop)], start - first * fp8.BLOCK)

    def quantize(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Fused values, and scales `[count * blocks, C]`, of whole queries, keys and values."""
        shards = [fp8.quantize(shard) for shard in self.fuse(parts).chunk(self.count)]
        values, scales = zip(*shards, strict=True)
        return torch.cat(values), torch.cat(scales)

    def dequantize(self, values: Tensor, scales: Tensor) -> list[Tensor]:
        """Undo `quantize`: whole queries, keys and values, float32."""
        pairs = zip(values.chunk(self.count), scales.chunk(self.count), strict=True)
        return self.split(torch.cat([fp8.dequantize(*pair) for pair in pairs]), self.rows)
