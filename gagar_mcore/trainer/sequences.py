"""The sequences of a step: where they lie in its columns, and how much of each is trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.records.expert_index import ExpertIndex

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepSequences:
    """starts, lengths `[S]`: first token of each sequence in columns of tokens end to end, and how many from there are used;
    truncated `[S]`: how many behind those are not."""

    starts: Ints
    lengths: Ints
    truncated: Ints

    def select(self, column: npt.NDArray[Any] | ExpertIndex, indices: Sequence[int]) -> npt.NDArray[Any]:
        """The entries of a per-token column `[T]` that belong to the sequences `indices`, in their order; no other is read."""
        parts = [column[self.starts[i] : self.starts[i] + self.lengths[i]] for i in indices]
        return np.concatenate(parts) if parts else column[:0]

    def bounds(self, indices: Sequence[int]) -> Ints:
        """The `cu_seqlens` of what `select` returns."""
        return np.cumsum([0, *self.lengths[list(indices)]], dtype=np.int64)

    def metrics(self) -> dict[str, float]:
        return {
            "truncated_sequences": float(np.count_nonzero(self.truncated)),
            "truncated_tokens": float(self.truncated.sum()),
        }


def step_sequences(cu_seqlens: Ints, trainer: TrainerSection) -> StepSequences:
    """cu_seqlens `[S + 1]`: bounds in the columns, from any token on.

    Where `overlong` is `truncate`, tokens beyond `max_tokens_per_sequence` are left out with their part of the loss; the weights
    of the others stay what they were, because no rank derives a denominator. Where it is `refuse`, raises ValueError."""
    lengths = np.diff(cu_seqlens)
    limit = trainer.max_tokens_per_sequence
    used = lengths if limit is None else np.minimum(lengths, limit)
    overlong = np.count_nonzero(used < lengths)
    if overlong and trainer.overlong == "refuse":
        raise ValueError(
            f"batch: {overlong} of {len(lengths)} sequences are longer than trainer.max_tokens_per_sequence={limit}, the longest"
            f" has {lengths.max()} tokens; raise the limit, or set trainer.overlong=truncate"
        )
    return StepSequences(np.asarray(cu_seqlens[:-1]), used, lengths - used)
