"""The part of a step that one forward pass takes, as tensors."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.models.packed import PackedSequences, packed_sequences
from gagar_mcore.ops.layout import TokenLayout


@dataclass(frozen=True, slots=True)
class Following:
    """What multi-token prediction of one depth k reads and guesses. tokens `[T]` int64: those k places on, 0 where there is none.
    scored, predicting, targets `[M]`: as in `PackedTokens`, for the tokens one place further on."""

    tokens: Tensor
    scored: Tensor
    predicting: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """This rank's parts of whole sequences end to end, filled up to a whole multiple by the part of one more sequence of zeros.

    tokens `[T]` int64; layout: where the sequences' tokens stand among them.
    scored `[N]` int64: the tokens, as the whole sequences count them, that the loss needs log-probs of and this rank predicts, in
    the order of `predicting` `[N]` int64, the positions whose hidden states predict them; targets `[N]` int64: their ids.
    following: of the depths 1, 2, ... of multi-token prediction, where it trains."""

    tokens: Tensor
    packed: PackedSequences
    layout: TokenLayout
    scored: Tensor
    predicting: Tensor
    targets: Tensor
    following: tuple[Following, ...] = ()


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pack_tokens(
    tokens: npt.NDArray[np.int32],
    cu_seqlens: npt.NDArray[np.int64],
    scored: npt.NDArray[np.bool_],
    multiple: int,
    cp_group: Any = None,
    mtp_depths: int = 0,
    experts: npt.NDArray[Any] | None = None,
) -> PackedTokens:
    """tokens, scored `[T]`, cu_seqlens `[S + 1]`: whole sequences, the same on all ranks of `cp_group`; multiple: what the
    positions on a rank are filled up to a multiple of; experts: their rows for `PackedSequences.experts`. Raises ValueError where
    the first token of a sequence is to be scored: nothing predicts it."""
    starts = cu_seqlens[:-1]
    if scored[starts].any():
        raise ValueError("a sequence's first token has loss weight, but nothing predicts it; its mask must be 0")
    layout = _filled(torch.as_tensor(cu_seqlens), multiple, cp_group)
    whole, counts = torch.as_tensor(tokens, dtype=torch.int64), torch.as_tensor(scored)
    bounds = layout.cu_local.tolist()
    parts = torch.tensor(bounds if bounds[-1] == layout.num_local else [*bounds, layout.num_local])
    packed = packed_sequences(parts, cp_group, device())
    here = layout.tokens_after(0)
    if experts is not None:
        packed.experts = _placed(torch.as_tensor(experts.astype(np.int64)), here, -1).to(device())
    return PackedTokens(
        _placed(whole, here, 0).to(device()),
        packed,
        layout.to(device()),
        *_predictions(layout, whole, counts, 1),
        tuple(
            Following(_placed(whole, layout.tokens_after(depth), 0).to(device()), *_predictions(layout, whole, counts, depth + 1))
            for depth in range(1, mtp_depths + 1)
        ),
    )


def _placed(column: Tensor, indices: Tensor, filling: int) -> Tensor:
    """The rows `indices` `[P]` of a column `[T, ...]`, `filling` where an index is -1."""
    rows = column.new_full((len(indices), *column.shape[1:]), filling)
    rows[indices >= 0] = column[indices[indices >= 0]]
    return rows


def _predictions(layout: TokenLayout, tokens: Tensor, scored: Tensor, distance: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scored tokens that stand `distance` places after a position here, those positions, and the tokens' ids."""
    ahead = layout.tokens_after(distance)
    predicting = (ahead >= 0).nonzero()[:, 0]
    predicting = predicting[scored[ahead[predicting]]]
    columns = (ahead[predicting], predicting, tokens[ahead[predicting]])
    first, second, third = (column.to(device()) for column in columns)
    return first, second, third


def _filled(cu_seqlens: Tensor, multiple: int, cp_group: Any) -> TokenLayout:
    """A rank holds at least one position, and whole chunks."""
    size, rank = (1, 0) if cp_group is None else (dist.get_world_size(cp_group), dist.get_rank(cp_group))
    layout = TokenLayout.build(cu_seqlens, cp_size=size, cp_rank=rank)
    multiple = math.lcm(multiple, 2 if layout.halved else 1)
    return replace(layout, num_local=max(1, -(-layout.num_local // multiple)) * multiple)
