"""The part of a step that one forward pass takes, as tensors."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gagar_mcore.models.packed import PackedSequences, packed_sequences


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Whole sequences end to end, filled up to a multiple of TP by one more sequence of zeros.

    tokens `[T]` int64; scored `[N]` int64: ascending positions of the tokens whose log-prob the loss needs, none of them
    first of its sequence."""

    tokens: Tensor
    packed: PackedSequences
    scored: Tensor


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pack_tokens(
    tokens: npt.NDArray[np.int32], cu_seqlens: npt.NDArray[np.int64], scored: npt.NDArray[np.bool_], tp: int
) -> PackedTokens:
    """tokens, scored `[T]`, cu_seqlens `[S + 1]`. Raises ValueError where the first token of a sequence is to be scored:
    nothing predicts it."""
    starts = cu_seqlens[:-1]
    if scored[starts].any():
        raise ValueError("a sequence's first token has loss weight, but nothing predicts it; its mask must be 0")
    fill = -len(tokens) % tp or (0 if len(tokens) else tp)
    filled = np.concatenate([tokens, np.zeros(fill, tokens.dtype)])
    bounds = np.append(cu_seqlens, len(filled)) if fill else cu_seqlens
    return PackedTokens(
        tokens=torch.as_tensor(filled, dtype=torch.int64, device=device()),
        packed=packed_sequences(torch.as_tensor(bounds, dtype=torch.int64, device=device())),
        scored=torch.as_tensor(np.flatnonzero(scored), device=device()),
    )
