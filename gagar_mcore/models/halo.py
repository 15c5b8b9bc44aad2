"""Attention to the last keys of a sequence whose zigzag chunks lie on several ranks: each chunk gets the keys just before it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from gagar_mcore.models.core_attention import attention
from gagar_mcore.models.exchange import swap_with_neighbours
from gagar_mcore.models.halo_plan import HaloPlan
from gagar_mcore.models.spans import Rows, Spans


@dataclass(frozen=True)
class Halo:
    """tails: rows that the next and the previous rank need; short: rows that all ranks need. order: the row of each key that
    `spans` count, among own rows, those of the previous rank, of the next, and gathered ones."""

    group: Any
    tails: tuple[Tensor, Tensor]
    short: Tensor
    order: Tensor
    spans: Spans

    @classmethod
    def build(cls, bounds: Rows, window: int, group: Any, device: torch.device) -> "Halo":
        """bounds `[S + 1]`: of this rank's parts, two equal chunks each; window: keys a query sees, its own included."""
        plan = HaloPlan(bounds, window - 1, dist.get_rank(group), dist.get_world_size(group))
        halos = plan.halos()
        own = plan.chunk_rows()
        keys = np.array([len(halo) for halo in halos], dtype=np.int64) + own[:, 1]
        spans = Spans(own, np.stack([keys.cumsum() - keys, keys], axis=1), int(bounds[-1]), device, window=window)
        runs = [part for halo, (start, count) in zip(halos, own, strict=True) for part in (halo, np.arange(start, start + count))]

        def index(rows: Rows) -> Tensor:
            return torch.as_tensor(rows, device=device)

        return cls(
            group, (index(plan.tail(0)), index(plan.tail(1))), index(plan.short_rows()), index(np.concatenate(runs)), spans
        )

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """Arguments and result of `packed_attention`."""
        rows = _Extend.apply(torch.cat([key.flatten(1), value.flatten(1)], dim=1), self)
        keys, values = rows.split([key[0].numel(), value[0].numel()], dim=1)
        return attention(query, keys.unflatten(1, key.shape[1:]), values.unflatten(1, value.shape[1:]), sinks, self.spans)


class _Extend(torch.autograd.Function):
    """This rank's rows `[T, F]` -> `[len(order), F]`. The backward pass returns the gradients of others' rows to them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, halo: Halo) -> Tensor:
        ctx.halo = halo
        from_previous, from_next = swap_with_neighbours(rows[halo.tails[0]], rows[halo.tails[1]], halo.group)
        gathered = rows.new_empty(dist.get_world_size(halo.group) * len(halo.short), rows.shape[1])
        if len(gathered):
            dist.all_gather_into_tensor(gathered, rows[halo.short], group=halo.group)
        ctx.sizes = [len(rows), len(from_previous), len(from_next), len(gathered)]
        return torch.cat([rows, from_previous, from_next, gathered])[halo.order]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        halo: Halo = ctx.halo
        sources = gradient.new_zeros(sum(ctx.sizes), gradient.shape[1]).index_add_(0, halo.order, gradient)
        rows, to_previous, to_next, gathered = sources.split(ctx.sizes)
        from_previous, from_next = swap_with_neighbours(to_next, to_previous, halo.group)
        rows.index_add_(0, halo.tails[0], from_next).index_add_(0, halo.tails[1], from_previous)
        if len(gathered):
            part = torch.empty_like(gathered[: len(halo.short)])
            dist.reduce_scatter_tensor(part, gathered, group=halo.group)
            rows.index_add_(0, halo.short, part)
        return rows, None
