"""Packed sequences as Megatron passes them to attention, with the index maps to and from a padded block."""

from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor


@dataclass
class PackedSequences(PackedSeqParams):
    """T tokens of S sequences, the longest of L tokens.

    positions `[T]`: place of each token in its sequence. gather `[S * L]`: token of each place of the padded block
    (any token where the sequence is shorter). scatter `[T]`: place in the block of each token.
    """

    positions: Tensor = None  # type: ignore[assignment]
    gather: Tensor = None  # type: ignore[assignment]
    scatter: Tensor = None  # type: ignore[assignment]

    @property
    def block_shape(self) -> tuple[int, int]:
        """(S, L)"""
        return len(self.gather) // self.max_seqlen_q, self.max_seqlen_q


def packed_sequences(cu_seqlens: Tensor) -> PackedSequences:
    """Index maps for sequences that begin at `cu_seqlens[:-1]`; cu_seqlens: `[S + 1]` int64, from 0 to T."""
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    count, longest, total = len(lengths), int(lengths.max()), int(cu_seqlens[-1])
    sequence = torch.repeat_interleave(torch.arange(count, device=cu_seqlens.device), lengths)
    positions = torch.arange(total, device=cu_seqlens.device) - starts[sequence]
    block = starts[:, None] + torch.arange(longest, device=cu_seqlens.device)
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        positions=positions,
        gather=block.clamp(max=total - 1).flatten(),
        scatter=sequence * longest + positions,
    )
