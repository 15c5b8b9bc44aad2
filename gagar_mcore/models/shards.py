"""How one Megatron parameter is made of Hugging Face tensors and cut over tensor-parallel ranks, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Form(Protocol):
    def split(self, tensors: Sequence[Tensor], tp: int) -> list[Tensor]:
        """The parameter on each of `tp` ranks."""

    def merge(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """The checkpoint's tensors from the parameter on each rank."""


class Replicated:
    """One tensor, whole on every rank."""

    def split(self, tensors: Sequence[Tensor], tp: int) -> list[Tensor]:
        return list(tensors) * tp

    def merge(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [shards[0]]


@dataclass(frozen=True, slots=True)
class Sharded:
    """One tensor, cut into equal parts along `dim`."""

    dim: int

    def split(self, tensors: Sequence[Tensor], tp: int) -> list[Tensor]:
        return list(tensors[0].chunk(tp, dim=self.dim))

    def merge(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(shards), dim=self.dim)]


class GateUp:
    """Gate and up projection: every rank holds its rows of the one above its rows of the other."""

    def split(self, tensors: Sequence[Tensor], tp: int) -> list[Tensor]:
        gates, ups = (tensor.chunk(tp) for tensor in tensors)
        return [torch.cat(pair) for pair in zip(gates, ups, strict=True)]

    def merge(self, shards: Sequence[Tensor]) -> list[Tensor]:
        halves = [shard.chunk(2) for shard in shards]
        return [torch.cat([half[part] for half in halves]) for part in (0, 1)]


@dataclass(frozen=True, slots=True)
class GroupedQkv:
    """Query, key and value projections, interleaved by key-value group: `[queries | key | value]` a group.

    groups: key-value heads of the layer. rows: rows of one group's queries, key and value."""

    groups: int
    rows: tuple[int, int, int]

    def split(self, tensors: Sequence[Tensor], tp: int) -> list[Tensor]:
        by_group = [tensor.unflatten(0, (self.groups, -1)) for tensor in tensors]
        return [shard.flatten(0, 1) for shard in torch.cat(by_group, dim=1).chunk(tp)]

    def merge(self, shards: Sequence[Tensor]) -> list[Tensor]:
        by_group = torch.cat(list(shards)).unflatten(0, (self.groups, -1))
        return [part.flatten(0, 1) for part in by_group.split(self.rows, dim=1)]
