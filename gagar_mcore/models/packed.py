"""Packed sequences as Megatron passes them to attention."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from gagar_mcore.models.core_attention import attention
from gagar_mcore.models.halo import Halo
from gagar_mcore.models.ring import Ring
from gagar_mcore.models.rotary import rotary_table
from gagar_mcore.models.spans import Rows, Spans

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass
class PackedSequences(PackedSeqParams):
    """This rank's parts, T tokens, of S sequences; the longest part has L.

    positions `[T]`: place of each token in its sequence. bounds `[S + 1]`: of the parts. group: the ranks that share the
    sequences, None where each is whole here. experts `[T, MoE layers, top_k]` int64: those that each token must go to in the
    layers with experts, -1 where it may go where its router sends it; None where all may."""

    positions: Tensor = None  # type: ignore[assignment]
    bounds: Rows = None  # type: ignore[assignment]
    group: Any = None
    experts: Tensor | None = None
    plans: dict[int | None, Attend] = field(default_factory=dict, repr=False)
    tables: dict[tuple[float, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def rotary_table(self, theta: float, dim: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """That of the positions for such layers, computed once."""
        kind = theta, dim, head_dim
        if kind not in self.tables:
            self.tables[kind] = rotary_table(self.positions, *kind)
        return self.tables[kind]

    def attend(self, window: int | None) -> Attend:
        """Attention over these sequences, planned once for each window."""
        if window not in self.plans:
            self.plans[window] = self._plan(window)
        return self.plans[window]

    def _plan(self, window: int | None) -> Attend:
        device = self.positions.device
        if self.group is not None:
            return (
                Ring.build(self.bounds, self.group, device)
                if window is None
                else Halo.build(self.bounds, window, self.group, device)
            )
        whole = np.stack([self.bounds[:-1], np.diff(self.bounds)], axis=1)
        spans = Spans(whole, whole, int(self.bounds[-1]), device, window=window)
        return lambda query, key, value, sinks: attention(query, key, value, sinks, spans)


def packed_sequences(cu_seqlens: Tensor, group: Any = None, device: torch.device | None = None) -> PackedSequences:
    """cu_seqlens `[S + 1]` int64, best on the CPU: bounds of this rank's parts. With a context-parallel `group` each part is the
    zigzag chunks r and 2 cp - 1 - r of a sequence padded to 2 cp equal ones, without it the sequence."""
    device = device or cu_seqlens.device
    if group is not None and dist.get_world_size(group) == 1:
        group = None
    bounds = cu_seqlens.cpu().numpy()
    longest = int(np.diff(bounds).max())
    cu_seqlens = cu_seqlens.to(device)
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        positions=torch.as_tensor(_positions(bounds, group), device=device),
        bounds=bounds,
        group=group,
    )


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences, window: int | None, sinks: Tensor | None
) -> Tensor:
    """Causal attention inside each packed sequence, wherever its other parts lie.

    query `[T, H, d]`, key `[T, G, d]`, value `[T, G, dv]` with H a multiple of G; a query at place i sees the keys
    j in `(i - window, i]`; sinks `[H]` are logits that take probability and give no value. Returns `[T, H, dv]`. The gradient of
    the sinks is that of this rank's queries; a collective of `packed.group`, forward and backward."""
    return packed.attend(window)(query, key, value, sinks)


def _positions(bounds: Rows, group: Any) -> Rows:
    lengths = np.diff(bounds)
    offset = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    if group is None:
        return offset
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunk = np.repeat(lengths // 2, lengths)
    return np.where(offset < chunk, rank * chunk, (2 * size - 2 - rank) * chunk) + offset
