"""The micro-batches of a reinforcement-learning step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.microbatch import PackedTokens, device, pack_tokens
from gagar_mcore.trainer.parts import Parts, StepPlan
from gagar_mcore.trainer.sequences import StepSequences
from gagar_mcore.trainer.update import context_parallel_group, data_parallel_rank


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """Sequences of one micro-batch; the columns are those of a batch. flags `[T]` uint8: 1 on tokens to train, + 2 on errors.
    old, reference `[N]` float32: log-probs of the scored tokens under the policy before the step and under the reference, where
    the loss needs them."""

    packed_tokens: PackedTokens
    rollout_logprobs: Tensor
    flags: Tensor
    advantages: Tensor
    weights: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None

    @property
    def layout(self) -> TokenLayout:
        return self.packed_tokens.layout

    def token_weights(self, tokens: Tensor) -> Tensor:
        return self.weights[torch.searchsorted(self.layout.cu_seqlens, tokens, right=True) - 1]


@dataclass(frozen=True, slots=True)
class ScoredParts(Sequence[PolicyPart]):
    """Micro-batches with what was scored of them before; None where nothing was."""

    parts: Parts[PolicyPart]
    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> PolicyPart:  # type: ignore[override]
        old, reference = (column[index] if column else None for column in (self.old, self.reference))
        return replace(self.parts[index], old=old, reference=reference)


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """Sequences in `count` runs of about equal number, at least one in each; tokens stay where they are. Each run's loss is as
    large as that of the whole: its weights are `count` times those of the batch."""
    ends = np.linspace(0, batch.num_sequences, min(count, batch.num_sequences) + 1).round().astype(int)
    return [
        replace(
            batch,
            cu_seqlens=batch.cu_seqlens[first : last + 1],
            advantages=batch.advantages[first:last],
            weights=batch.weights[first:last] * (len(ends) - 1),
        )
        for first, last in pairwise(ends)
    ]


def policy_parts(batch: Batch, plan: StepPlan, trainer: TrainerSection) -> Parts[PolicyPart]:
    """This rank's micro-batches."""
    groups = plan.packing.microbatches[data_parallel_rank()]
    cut = {"cp_group": context_parallel_group(), "mtp_depths": plan.mtp_depths, "replay": trainer.routing == "replay"}
    return Parts(groups, partial(policy_part, batch, plan.sequences, trainer.tokens_multiple, **cut))


def policy_part(
    batch: Batch, sequences: StepSequences, multiple: int, indices: Sequence[int], *, replay: bool = False, **cut: Any
) -> PolicyPart:
    """The micro-batch of the sequences `indices`, cut as `pack_tokens` is told; reads no other tokens."""
    bounds = sequences.bounds(indices)
    columns = (batch.tokens, batch.logprobs, batch.loss_mask, batch.error_mask)
    tokens, logprobs, trained, errors = (sequences.select(column, indices) for column in columns)
    experts = sequences.select(batch.experts, indices) if replay and batch.experts is not None else None
    return PolicyPart(
        packed_tokens=pack_tokens(tokens, bounds, trained.astype(bool), multiple, experts=experts, **cut),
        rollout_logprobs=torch.as_tensor(logprobs, device=device()),
        flags=torch.as_tensor(trained | errors << 1, device=device()),
        advantages=torch.as_tensor(batch.advantages[list(indices)], device=device()),
        weights=torch.as_tensor(batch.weights[list(indices)], device=device()),
    )
