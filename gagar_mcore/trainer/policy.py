"""One reinforcement-learning step: a batch of trajectories, one optimizer step, its metrics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.config.learning import LossSection, OptimizerSection, TrainerSection
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.reference import policy_loss
from gagar_mcore.ops.spec import LossSpec
from gagar_mcore.ops.stats import PolicyStats
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.microbatch import PackedTokens, device, pack_tokens, select, select_bounds
from gagar_mcore.trainer.packing import plan_microbatches
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.update import accumulate_gradients, data_parallel_rank, over_replicas, step_optimizer


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """Sequences of one micro-batch; the columns are those of a batch."""

    packed_tokens: PackedTokens
    rollout_logprobs: Tensor
    loss_mask: Tensor
    advantages: Tensor
    weights: Tensor
    cu_seqlens: Tensor


@dataclass(frozen=True, slots=True)
class PartStats:
    """Statistics of a micro-batch's loss, and the sum of its trained tokens' entropies, float64."""

    loss: PolicyStats
    entropy: Tensor

    def combine(self, other: "PartStats") -> "PartStats":
        return PartStats(self.loss.combine(other.loss), self.entropy + other.entropy)

    def metrics(self) -> dict[str, float]:
        metrics = self.loss.metrics()
        return {**metrics, "entropy": float(self.entropy) / max(metrics["trained_tokens"], 1.0)}


def apply_batch(policy: Policy, batch: Batch, trainer: TrainerSection, temperature: float, step: int) -> dict[str, float]:
    """Take the optimizer step `step` (from 1) on `batch`; returns metrics by name. A collective."""
    started = time.perf_counter()
    parts = policy_parts(batch, trainer)
    stats = accumulate_gradients(policy, parts, partial(part_loss, trainer.loss), temperature)
    lr = learning_rate(trainer.optimizer, step)
    grad_norm = step_optimizer(policy, lr, trainer.optimizer.weight_decay)
    measured = reduce(PartStats.combine, stats)
    losses = PolicyStats(over_replicas(measured.loss.sums), over_replicas(measured.loss.maxima, dist.ReduceOp.MAX))
    total = PartStats(losses, over_replicas(measured.entropy))
    seconds = time.perf_counter() - started
    metrics = {
        **total.metrics(),
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


def part_loss(section: LossSection, part: PolicyPart, logprobs: Tensor, entropies: Tensor) -> tuple[Tensor, PartStats]:
    """logprobs, entropies `[N]` of the scored tokens, which are those with loss mask 1."""
    layout = TokenLayout.build(part.cu_seqlens)
    spread = logprobs.new_zeros(layout.num_local).index_put((part.packed_tokens.scored - 1,), logprobs)
    spec = LossSpec(section.name, section.positive_bounds, section.negative_bounds)
    loss, stats = policy_loss(spread, part.rollout_logprobs, part.loss_mask, part.advantages, part.weights, layout, spec)
    return loss, PartStats(stats, entropies.double().sum())


def learning_rate(section: OptimizerSection, step: int) -> float:
    """Linear warm-up, then constant; `step` counts from 1."""
    return section.lr * min(1.0, step / max(section.warmup_steps, 1))


def _part(batch: Batch, sequences: Sequence[int], tp: int) -> PolicyPart:
    bounds = select_bounds(batch.cu_seqlens, sequences)
    tokens, logprobs, mask = (
        select(column, batch.cu_seqlens, sequences) for column in (batch.tokens, batch.logprobs, batch.loss_mask)
    )
    return PolicyPart(
        packed_tokens=pack_tokens(tokens, bounds, mask.astype(bool), tp),
        rollout_logprobs=torch.as_tensor(logprobs, device=device()),
        loss_mask=torch.as_tensor(mask, device=device()),
        advantages=torch.as_tensor(batch.advantages[list(sequences)], device=device()),
        weights=torch.as_tensor(batch.weights[list(sequences)], device=device()),
        cu_seqlens=torch.as_tensor(bounds, device=device()),
    )
