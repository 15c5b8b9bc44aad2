"""One micro-batch of sequences packed into a row, as transformers' models take it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gagar_mcore.sft.data import SftData
from gagar_mcore.trainer.sequences import StepSequences


@dataclass(frozen=True, slots=True)
class RowPart:
    """tokens, positions `[1, T]` int64: sequences end to end, whose positions begin at 0 each. predicting `[N]` int64: the
    positions whose outputs are needed, targets `[N]` int64 what follows them, weights `[N]` float32 its share in the loss."""

    tokens: Tensor
    positions: Tensor
    predicting: Tensor
    targets: Tensor
    weights: Tensor


def row_part(
    data: SftData, sequences: StepSequences, denominator: float, device: torch.device, indices: Sequence[int]
) -> RowPart:
    """The micro-batch of the step's sequences `indices`; without any, one token that weighs nothing."""
    tokens, shares = sequences.select(data.tokens, indices), sequences.select(data.loss_weights, indices) / denominator
    positions = np.concatenate([np.arange(length) for length in np.diff(sequences.bounds(indices))] or [np.zeros(1, np.int64)])
    scored = np.flatnonzero(shares)
    if not len(scored):  # a rank goes along with the others
        tokens, scored, shares = tokens if len(tokens) else np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1)

    def placed(column: Any, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.array(column), dtype=dtype, device=device)

    return RowPart(
        placed(tokens, torch.int64)[None],
        placed(positions, torch.int64)[None],
        placed(np.maximum(scored - 1, 0), torch.int64),
        placed(tokens[scored], torch.int64),
        placed(shares[scored], torch.float32),
    )


def row_loss(model: Any, part: RowPart) -> Tensor:
    """The part's share of the step's weighted mean negative log-likelihood. Logits are made for `predicting` alone.

    Without a mask, and with positions that begin anew, transformers lets no sequence of the row see another
    (`masking_utils.find_packed_sequence_indices`)."""
    output = model(
        input_ids=part.tokens,
        position_ids=part.positions,
        attention_mask=None,
        use_cache=False,
        logits_to_keep=part.predicting,
    )
    losses = cross_entropy(output.logits[0].float(), part.targets, reduction="none")
    return (part.weights * losses).sum()
