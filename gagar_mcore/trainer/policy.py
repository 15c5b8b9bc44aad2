"""One reinforcement-learning step: a batch of trajectories, one optimizer step, its metrics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.config.learning import LossSection, OptimizerSection, TrainerSection
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.credit import BehaviourParams
from gagar_mcore.ops.behaviour import Behaviour, advantage_sums, behaviour_of
from gagar_mcore.ops.fused import policy_loss, sequence_counts
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.stats import PolicyStats
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.microbatch import PackedTokens, device, pack_tokens, select, select_bounds
from gagar_mcore.trainer.packing import plan_microbatches
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.update import accumulate_gradients, data_parallel_rank, over_last_stages, over_replicas, step_optimizer

CHECKED_AT_ONCE = 1 << 24  # entries of a memory-mapped column


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """Sequences of one micro-batch; the columns are those of a batch. flags `[T]` uint8: 1 on tokens to train, + 2 on errors."""

    packed_tokens: PackedTokens
    rollout_logprobs: Tensor
    flags: Tensor
    advantages: Tensor
    weights: Tensor
    layout: TokenLayout


@dataclass(frozen=True, slots=True)
class PartStats:
    """Statistics of a micro-batch's loss, and the sum of its trained tokens' entropies, float64."""

    loss: PolicyStats
    entropy: Tensor

    @classmethod
    def of_nothing(cls) -> "PartStats":
        return cls(PolicyStats.of_nothing(device()), torch.zeros([], dtype=torch.float64, device=device()))

    def combine(self, other: "PartStats") -> "PartStats":
        return PartStats(self.loss.combine(other.loss), self.entropy + other.entropy)

    def metrics(self) -> dict[str, float]:
        metrics = self.loss.metrics()
        return {**metrics, "entropy": float(self.entropy) / max(metrics["trained_tokens"], 1.0)}


def apply_batch(policy: Policy, batch: Batch, recipe: Recipe, step: int) -> dict[str, float]:
    """Take the optimizer step `step` (from 1) on `batch`; returns metrics by name. A collective."""
    started = time.perf_counter()
    check_finite(batch)
    trainer, shaping = recipe.trainer, recipe.method.behaviour()
    parts = policy_parts(batch, trainer)
    behaviour = step_behaviour(parts, shaping) if shaping else None
    stats = accumulate_gradients(policy, parts, partial(part_loss, trainer.loss, behaviour), recipe.rollout.temperature)
    lr = learning_rate(trainer.optimizer, step)
    grad_norm = step_optimizer(policy, lr, trainer.optimizer.weight_decay)
    metrics = loss_metrics(trainer.loss, total_stats(stats)) | (behaviour_metrics(behaviour) if behaviour else {})
    seconds = time.perf_counter() - started
    metrics |= {
        "grad_norm": grad_norm,
        "lr": lr,
        "tokens": float(len(batch.tokens)),
        "sequences": float(batch.num_sequences),
        "microbatches": float(len(parts)),
        "seconds": seconds,
        "tokens_per_second": len(batch.tokens) / seconds,
    }
    return {f"train/{name}": value for name, value in metrics.items()}


def policy_parts(batch: Batch, trainer: TrainerSection) -> list[PolicyPart]:
    """This rank's micro-batches."""
    lengths = batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]
    plan = plan_microbatches(lengths.tolist(), trainer.tokens_per_microbatch, trainer.dp)
    return [_part(batch, sequences, trainer.tp) for sequences in plan[data_parallel_rank()]]


def step_behaviour(parts: Sequence[PolicyPart], params: BehaviourParams) -> Behaviour:
    """Behaviour shaping over all tokens of the step. A collective."""
    sums = torch.stack([advantage_sums(sequence_counts(part.flags, part.layout), part.advantages) for part in parts]).sum(0)
    return behaviour_of(over_replicas(sums), params.kappa, params.low, params.high)


def part_loss(
    section: LossSection, behaviour: Behaviour | None, part: PolicyPart, logprobs: Tensor, entropies: Tensor
) -> tuple[Tensor, PartStats]:
    """logprobs, entropies `[N]` of the scored tokens, which are those to train."""
    spread = logprobs.new_zeros(part.layout.num_local).index_put((part.packed_tokens.scored - 1,), logprobs)
    loss, stats = policy_loss(
        spread,
        part.rollout_logprobs,
        part.flags,
        part.advantages,
        part.weights,
        part.layout,
        section.spec(),
        old_logprobs=spread.detach() if section.old == "current" else None,
        behaviour=behaviour,
    )
    return loss, PartStats(stats, entropies.double().sum())


def total_stats(stats: Sequence[PartStats]) -> PartStats:
    """Those of the whole batch, from this rank's micro-batches. A collective."""
    measured = reduce(PartStats.combine, stats, PartStats.of_nothing())
    losses = PolicyStats(over_last_stages(measured.loss.sums), over_last_stages(measured.loss.maxima, dist.ReduceOp.MAX))
    return PartStats(losses, over_last_stages(measured.entropy))


def loss_metrics(section: LossSection, stats: PartStats) -> dict[str, float]:
    """Metrics of the terms that the loss has."""
    absent = {"ref_kl"} | (set() if section.tis_cap else {"importance_mean", "truncated_share"})
    return {name: value for name, value in stats.metrics().items() if name not in absent}


def behaviour_metrics(behaviour: Behaviour) -> dict[str, float]:
    alpha, beta = behaviour.scale.tolist()
    return {"behaviour_alpha": alpha, "behaviour_beta": beta, "behaviour_clamped": float(behaviour.clamped)}


def learning_rate(section: OptimizerSection, step: int) -> float:
    """Linear warm-up, then constant; `step` counts from 1."""
    return section.lr * min(1.0, step / max(section.warmup_steps, 1))


def _part(batch: Batch, sequences: Sequence[int], tp: int) -> PolicyPart:
    bounds = select_bounds(batch.cu_seqlens, sequences)
    columns = (batch.tokens, batch.logprobs, batch.loss_mask, batch.error_mask)
    tokens, logprobs, trained, errors = (select(column, batch.cu_seqlens, sequences) for column in columns)
    return PolicyPart(
        packed_tokens=pack_tokens(tokens, bounds, trained.astype(bool), tp),
        rollout_logprobs=torch.as_tensor(logprobs, device=device()),
        flags=torch.as_tensor(trained | errors << 1, device=device()),
        advantages=torch.as_tensor(batch.advantages[list(sequences)], device=device()),
        weights=torch.as_tensor(batch.weights[list(sequences)], device=device()),
        layout=TokenLayout.build(torch.as_tensor(bounds)).to(device()),
    )


def check_finite(batch: Batch) -> None:
    """Raises ValueError that names the column, on every rank alike, so that none is left waiting."""
    for name in ("logprobs", "advantages", "weights"):
        column = getattr(batch, name)
        for first in range(0, len(column), CHECKED_AT_ONCE):
            part = column[first : first + CHECKED_AT_ONCE]
            if not np.isfinite(part).all():
                raise ValueError(f"batch: {name} holds {part[~np.isfinite(part)][0]}; the engine or the credit step went wrong")
