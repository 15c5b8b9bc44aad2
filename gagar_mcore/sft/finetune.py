"""Supervised fine-tuning: weighted next-token likelihood, one optimizer step after another. Imported after `rank.start_rank`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.init import random_tensors
from gagar_mcore.sft.data import SftData
from gagar_mcore.trainer.microbatch import PackedTokens, device, pack_tokens
from gagar_mcore.trainer.parts import Parts, StepPlan, plan_step
from gagar_mcore.trainer.publish import FILE_BYTES, publish_new, write_shards
from gagar_mcore.trainer.scoring import score
from gagar_mcore.trainer.sequences import StepSequences
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.shards import local_tensors
from gagar_mcore.trainer.update import (
    Scores,
    accumulate_gradients,
    context_parallel_group,
    data_parallel_rank,
    over_last_stages,
    step_optimizer,
)
from gagar_mcore.trainer.weight_checks import check_weights
from gagar_mcore.weights.files import TensorReader, read_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage


@dataclass(frozen=True, slots=True)
class SftPart:
    """Sequences of one micro-batch. weights `[T]`: share of each token in the step's loss."""

    packed_tokens: PackedTokens
    weights: Tensor

    def token_weights(self, tokens: Tensor) -> Tensor:
        return self.weights[tokens]


def starting_weights(init: Path, seed: int) -> tuple[ModelConfig, TensorReader]:
    """Those of a checkpoint, or random ones where `init` holds a configuration alone."""
    if any(init.glob("*.safetensors")):
        checkpoint = PublishedCheckpoint(init)
        return checkpoint.model, checkpoint.read
    model = read_config(init)
    return model, random_tensors(model, seed)


def train_step(policy: Policy, data: SftData, trainer: TrainerSection, step: int, lr: float) -> dict[str, float]:
    """One optimizer step, `step` from 0; returns its metrics. A collective."""
    started = time.perf_counter()
    plan = plan_step(data.bounds(step), trainer, policy.model)
    losses = accumulate_gradients(policy, sft_parts(data, plan, trainer, step), part_loss, entropies=False)
    grad_norm = step_optimizer(policy, lr, trainer.optimizer.weight_decay)
    loss = over_last_stages(sum(losses, torch.zeros([], device=device())))
    seconds = time.perf_counter() - started
    metrics = {
        "loss": float(loss),
        "grad_norm": grad_norm,
        "lr": lr,
        **plan.metrics(),
        "tokens_per_second": plan.num_tokens / seconds,
    }
    return {f"sft/{name}": value for name, value in metrics.items()}


def heldout_loss(policy: Policy, data: SftData, trainer: TrainerSection) -> float:
    """Weighted mean negative log-likelihood of all sequences of `data`. A collective."""
    total = torch.zeros([], device=device())
    for step in range(data.num_steps):
        parts = sft_parts(data, plan_step(data.bounds(step), trainer, policy.model), trainer, step)
        share = data.denominator(step)
        for part, logprobs in zip(parts, score(policy, parts, temperature=1.0), strict=False):  # none but on the last stage
            total -= share * (part.token_weights(part.packed_tokens.scored) * logprobs).sum()
    return float(over_last_stages(total)) / float(data.loss_weights.sum(dtype=np.float64))


def sft_parts(data: SftData, plan: StepPlan, trainer: TrainerSection, step: int) -> Parts[SftPart]:
    """This rank's micro-batches of one step."""
    groups = plan.packing.microbatches[data_parallel_rank()]
    cut = {"cp_group": context_parallel_group(), "mtp_depths": plan.mtp_depths}
    return Parts(groups, partial(sft_part, data, plan.sequences, data.denominator(step), trainer.tokens_multiple, **cut))


def part_loss(part: SftPart, scores: Scores) -> tuple[Tensor, Tensor]:
    """The part's share of the weighted mean negative log-likelihood of the step."""
    loss = -(part.token_weights(part.packed_tokens.scored) * scores.logprobs).sum()
    return loss + scores.mtp, loss.detach()


def export(policy: Policy, precision: Literal["fp32", "bf16"], init: Path, out: Path) -> None:
    """Publish the weights with configuration and tokenizer of `init`. A collective; raises as `check_weights` does."""
    check_weights(policy)
    storage = Storage(policy.model, precision)
    write = partial(write_shards, local_tensors(policy.chunks), storage, FILE_BYTES)
    publish_new(out, "weights", write, storage.companions(read_companions(init)), {"version": 0})


def sft_part(
    data: SftData, sequences: StepSequences, denominator: float, multiple: int, indices: Sequence[int], **cut: Any
) -> SftPart:
    """The micro-batch of the step's sequences `indices`, cut as `pack_tokens` is told; reads no other tokens."""
    tokens, weights = (sequences.select(column, indices) for column in (data.tokens, data.loss_weights))
    packed = pack_tokens(tokens, sequences.bounds(indices), weights > 0, multiple, **cut)
    return SftPart(packed, torch.as_tensor(weights / denominator, dtype=torch.float32, device=device()))
