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
class PackedTokens:
    """This rank's parts of whole sequences end to end, filled up to a multiple of TP by the part of one more sequence of zeros.

    tokens `[T]` int64; layout: where the sequences' tokens stand among them.
    scored `[N]` int64: the tokens, as the whole sequences count them, that the loss needs log-probs of and this rank predicts, in
    the order of `predicting` `[N]` int64, the positions whose hidden states predict them; targets `[N]` int64: their ids."""

    tokens: Tensor
    packed: PackedSequences
    layout: TokenLayout
    scored: Tensor
    predicting: Tensor
    targets: Tensor


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pack_tokens(
    tokens: npt.NDArray[np.int32],
    cu_seqlens: npt.NDArray[np.int64],
    scored: npt.NDArray[np.bool_],
    tp: int,
    cp_group: Any = None,
) -> PackedTokens:
    """tokens, scored `[T]`, cu_seqlens `[S + 1]`: whole sequences, the same on all ranks of `cp_group`. Raises ValueError where
    the first token of a sequence is to be scored: nothing predicts it."""
    starts = cu_seqlens[:-1]
    if scored[starts].any():
        raise ValueError("a sequence's first token has loss weight, but nothing predicts it; its mask must be 0")
    layout = _filled(torch.as_tensor(cu_seqlens), tp, cp_group)
    here, predicted = layout.tokens_after(0), layout.predicted_tokens()
    whole = torch.as_tensor(tokens, dtype=torch.int64)
    local = torch.zeros(layout.num_local, dtype=torch.int64)
    local[here >= 0] = whole[here[here >= 0]]
    predicting = (predicted >= 0).nonzero()[:, 0]
    predicting = predicting[torch.as_tensor(scored)[predicted[predicting]]]
    bounds = layout.cu_local.tolist()
    parts = torch.tensor(bounds if bounds[-1] == layout.num_local else [*bounds, layout.num_local])
    columns = (local, predicted[predicting], predicting, whole[predicted[predicting]])
    on_device = [column.to(device()) for column in columns]
    return PackedTokens(on_device[0], packed_sequences(parts, cp_group, device()), layout.to(device()), *on_device[1:])


def _filled(cu_seqlens: Tensor, tp: int, cp_group: Any) -> TokenLayout:
    """A rank holds at least one position, and whole chunks."""
    size, rank = (1, 0) if cp_group is None else (dist.get_world_size(cp_group), dist.get_rank(cp_group))
    layout = TokenLayout.build(cu_seqlens, cp_size=size, cp_rank=rank)
    multiple = math.lcm(tp, 2 if layout.halved else 1)
    return replace(layout, num_local=max(1, -(-layout.num_local // multiple)) * multiple)
