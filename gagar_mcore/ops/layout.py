"""Where the tokens of packed sequences lie on a context-parallel rank."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Order = Literal["zigzag", "contiguous"]


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """S sequences end to end, whole and as one rank's part of each.

    cu_seqlens `[S + 1]` int64: bounds of the whole sequences, without padding; `num_tokens` is the last one.
    cu_local `[S + 1]` int64: bounds of this rank's parts, padding included. All ranks' parts of a sequence are equally long and
    together at least as long as the sequence. Local positions from `cu_local[S]` to `num_local` are filling.
    order: `zigzag` cuts a padded sequence into 2 * cp_size chunks, rank r owning chunks r and 2 * cp_size - 1 - r;
    `contiguous` into cp_size, rank r owning chunk r. With one rank both are the whole sequence.

    A local position p of a sequence holds the logits that predict its token p + 1.
    Raises ValueError for bounds that contradict each other; bounds that are not on the CPU are not read.
    """

    cu_seqlens: Tensor
    cu_local: Tensor
    num_tokens: int
    num_local: int
    cp_size: int = 1
    cp_rank: int = 0
    order: Order = "zigzag"

    def __post_init__(self) -> None:
        if self.order not in ("zigzag", "contiguous"):
            raise ValueError(f"order: must be zigzag or contiguous, got {self.order!r}")
        if not 0 <= self.cp_rank < self.cp_size:
            raise ValueError(f"cp_rank: must be from 0 to cp_size - 1 = {self.cp_size - 1}, got {self.cp_rank}")
        for name in ("cu_seqlens", "cu_local"):
            bounds = getattr(self, name)
            if bounds.dtype != torch.int64 or bounds.dim() != 1 or len(bounds) < 1 or not bounds.is_contiguous():
                raise ValueError(f"{name}: must be contiguous [S + 1] int64, got {list(bounds.shape)} {bounds.dtype}")
        if len(self.cu_seqlens) != len(self.cu_local) or self.cu_seqlens.device != self.cu_local.device:
            raise ValueError("cu_local: must have the length and the device of cu_seqlens")
        if self.cu_seqlens.device.type == "cpu":
            self._check_values()

    def _check_values(self) -> None:
        whole, local = self.cu_seqlens.diff(), self.cu_local.diff()
        for name, bounds, lengths in (("cu_seqlens", self.cu_seqlens, whole), ("cu_local", self.cu_local, local)):
            if bounds[0] != 0 or (lengths < 0).any():
                raise ValueError(f"{name}: must start at 0 and never fall")
        if self.cu_seqlens[-1] != self.num_tokens:
            raise ValueError(f"cu_seqlens: ends at {int(self.cu_seqlens[-1])}, but there are {self.num_tokens} tokens")
        if self.cu_local[-1] > self.num_local:
            raise ValueError(f"cu_local: ends at {int(self.cu_local[-1])}, beyond the {self.num_local} local positions")
        if (local * self.cp_size < whole).any():
            raise ValueError("cu_local: the ranks' parts of a sequence are together shorter than the sequence")
        if self.halved and (local % 2).any():
            raise ValueError("cu_local: zigzag parts consist of two equal chunks, but a length is odd")

    @classmethod
    def build(
        cls,
        cu_seqlens: Tensor,
        *,
        cp_size: int = 1,
        cp_rank: int = 0,
        order: Order = "zigzag",
        multiple: int = 1,
        num_local: int | None = None,
    ) -> "TokenLayout":
        """The layout in which each sequence is padded to the least multiple of `multiple` and of the number of chunks.

        num_local: local positions, filling included; None for no filling. Raises ValueError that names the argument."""
        for name, value in (("cp_size", cp_size), ("multiple", multiple)):
            if value < 1:
                raise ValueError(f"{name}: must be at least 1, got {value}")
        if not len(cu_seqlens):
            raise ValueError("cu_seqlens: must be [S + 1] and start at 0, got nothing")
        chunks = math.lcm(multiple, 2 * cp_size if order == "zigzag" and cp_size > 1 else cp_size)
        padded = torch.div(cu_seqlens.diff() + chunks - 1, chunks, rounding_mode="floor") * chunks
        cu_local = torch.cat([cu_seqlens.new_zeros(1), (padded // cp_size).cumsum(0)])
        ends = int(cu_seqlens[-1]), int(cu_local[-1])
        return cls(cu_seqlens, cu_local, ends[0], ends[1] if num_local is None else num_local, cp_size, cp_rank, order)

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def halved(self) -> bool:
        """Whether a local part is two chunks that lie apart in the sequence."""
        return self.order == "zigzag" and self.cp_size > 1

    def to(self, device: torch.device | str) -> "TokenLayout":
        cu_seqlens, cu_local = self.cu_seqlens.to(device), self.cu_local.to(device)
        return TokenLayout(cu_seqlens, cu_local, self.num_tokens, self.num_local, self.cp_size, self.cp_rank, self.order)

    def sequences(self) -> Tensor:
        """Sequence `[num_local]` int64 of each local position, S on filling."""
        places = torch.arange(self.num_local, device=self.cu_local.device)
        return torch.searchsorted(self.cu_local, places, right=True) - 1

    def predicted_tokens(self) -> Tensor:
        """Index `[num_local]` int64 of the token that each local position predicts, -1 on padding and at a sequence's end."""
        return self.tokens_after(1)

    def tokens_after(self, steps: int) -> Tensor:
        """Index `[num_local]` int64 of the token `steps` places after each local position, -1 where its sequence has none."""
        sequence = self.sequences()
        filling = sequence == self.num_sequences
        sequence = sequence.masked_fill(filling, 0)
        if not self.num_sequences:
            return torch.full_like(sequence, -1)
        offset = torch.arange(self.num_local, device=sequence.device) - self.cu_local[sequence]
        token = self.cu_seqlens[sequence] + self._position(offset, self.cu_local.diff()[sequence]) + steps
        return token.masked_fill(filling | (token >= self.cu_seqlens[sequence + 1]), -1)

    def _position(self, offset: Tensor, length: Tensor) -> Tensor:
        """Position in the padded sequence of the local `offset` in a part of `length`."""
        if not self.halved:
            return self.cp_rank * length + offset
        chunk = length // 2
        second = (2 * self.cp_size - 1 - self.cp_rank) * chunk + offset - chunk
        return torch.where(offset < chunk, self.cp_rank * chunk + offset, second)
