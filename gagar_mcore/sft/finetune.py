"""Supervised fine-tuning: weighted next-token likelihood, one optimizer step after another. Imported after `rank.start_rank`."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.init import random_tensors
from gagar_mcore.sft.data import SftData
from gagar_mcore.sft.schedule import learning_rate
from gagar_mcore.trainer.microbatch import PackedTokens, device, pack_tokens
from gagar_mcore.trainer.parts import Parts, StepPlan, plan_step
from gagar_mcore.trainer.publish import FILE_BYTES, publish_new, write_shards
from gagar_mcore.trainer.sequences import StepSequences
from gagar_mcore.trainer.setup import Policy, build_policy
from gagar_mcore.trainer.shards import load_tensors, local_tensors
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

log = logging.getLogger(__name__)
LOG_EVERY = 20


@dataclass(frozen=True, slots=True)
class SftPart:
    """Sequences of one micro-batch. weights `[T]`: share of each token in the step's loss."""

    packed_tokens: PackedTokens
    weights: Tensor

    def token_weights(self, tokens: Tensor) -> Tensor:
        return self.weights[tokens]


def fine_tune(
    recipe: Recipe, trainer: TrainerSection, data: SftData, init: Path, report: Callable[[dict[str, float]], None]
) -> Policy:
    """Train on all steps of `data`. A collective; rank 0 reports the metrics of every step."""
    start, read = starting_weights(init, recipe.seed)
    policy = build_policy(recipe.model.of(start), trainer, recipe.sft.router_bias_update_rate)
    load_tensors(policy.chunks, policy.model, read)
    for step in range(data.num_steps):
        metrics = train_step(policy, data, trainer, step, learning_rate(recipe.sft, step + 1, data.num_steps))
        if dist.get_rank() == 0:
            report(metrics)
    return policy


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
    return {"step": step + 1} | {f"sft/{name}": value for name, value in metrics.items()}


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


def metrics_writer(path: Path | None) -> Callable[[dict[str, float]], None]:
    """A function that appends metrics to `path` and tells the log now and then."""

    def report(metrics: dict[str, float]) -> None:
        if path is not None:
            with open(path, "a") as file:
                file.write(json.dumps(metrics) + "\n")
        if metrics["step"] % LOG_EVERY == 0:
            log.warning(
                "step %d: loss %.4f, %.0f tokens/s", metrics["step"], metrics["sft/loss"], metrics["sft/tokens_per_second"]
            )

    return report


def sft_part(
    data: SftData, sequences: StepSequences, denominator: float, multiple: int, indices: Sequence[int], **cut: Any
) -> SftPart:
    """The micro-batch of the step's sequences `indices`, cut as `pack_tokens` is told; reads no other tokens."""
    tokens, weights = (sequences.select(column, indices) for column in (data.tokens, data.loss_weights))
    packed = pack_tokens(tokens, sequences.bounds(indices), weights > 0, multiple, **cut)
    return SftPart(packed, torch.as_tensor(weights / denominator, dtype=torch.float32, device=device()))
