"""Attention to all keys of a sequence whose zigzag chunks lie on several ranks: keys and values travel round a ring."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from gagar_mcore.models.core_attention import attend, attend_backward, merge, sink_gradient, with_sinks
from gagar_mcore.models.exchange import Flight, round_trip, to_next
from gagar_mcore.models.spans import Rows, Spans


@dataclass(frozen=True)
class Ring:
    """Half of the work on other ranks' keys is empty and left out: what the second chunk of a rank before this one, and what this
    rank's first chunk and a rank after it, have to do with each other."""

    group: Any
    own: Spans
    before: Spans
    after: Spans

    @classmethod
    def build(cls, bounds: Rows, group: Any, device: torch.device) -> "Ring":
        """bounds `[S + 1]`: of this rank's parts, two equal chunks each."""
        whole = np.stack([bounds[:-1], np.diff(bounds)], axis=1)
        first = whole // [1, 2]
        second = first + first[:, 1:] * [1, 0]
        total = int(bounds[-1])
        return cls(
            group,
            own=Spans(whole, whole, total, device),
            before=Spans(whole, first, total, device, causal=False),
            after=Spans(second, whole, total, device, causal=False),
        )

    def spans(self, source: int) -> Spans:
        """What this rank's queries see of the keys of rank `source`."""
        rank = dist.get_rank(self.group)
        return self.own if source == rank else self.before if source < rank else self.after

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """Arguments and result of `packed_attention`. Holds, besides a rank's own, at most two ranks' keys and values."""
        output: Tensor = _RingAttention.apply(query, key, value, sinks, self)
        return output


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, ring: Ring) -> Tensor:
        trip = round_trip((key, value), ring.group)
        parts = (attend(query, keys, values, ring.spans(source)) for source, (keys, values) in trip)
        output, lse = next(parts)
        for part in parts:
            output, lse = merge(output, lse, *part)
        output, lse = with_sinks(output, lse, sinks)
        output = output.to(value.dtype)
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, sinks, output, lse)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of keys and values follow them round the ring, one rank behind, and come home after the last."""
        query, key, value, sinks, output, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        grad_query = torch.zeros_like(query, dtype=lse.dtype)
        flight: Flight | None = None
        for source, (keys, values) in round_trip((key, value), ring.group):
            part, *grads = attend_backward(gradient, query, keys, values, output, lse, ring.spans(source))
            grad_query += part
            for grad, arrived in zip(grads, flight.land() if flight else (), strict=False):
                grad += arrived
            flight = to_next(grads, ring.group)
        assert flight is not None
        grad_key, grad_value = flight.land()
        grads = [grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)]
        return *grads, sink_gradient(sinks, gradient, output, lse), None
