"""One reinforcement-learning step: a batch of trajectories, one optimizer step, its metrics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
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
from gagar_mcore.trainer.microbatch import PackedTokens, device, pack_tokens
from gagar_mcore.trainer.parts import Parts, StepPlan, plan_step
from gagar_mcore.trainer.sequences import StepSequences
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.update import accumulate_gradients, data_parallel_rank, over_last_stages, over_replicas, step_optimizer

DEFECTS = ("numbers", "an infinity", "nan")


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
    trainer, shaping = recipe.trainer, recipe.method.behaviour()
    plan = plan_step(batch.cu_seqlens, trainer, policy.model)
    parts = policy_parts(batch, plan, trainer)
    check_finite(batch, plan.sequences, parts.groups)
    behaviour = step_behaviour(parts, shaping) if shaping else None
    stats = accumulate_gradients(policy, parts, partial(part_loss, trainer.loss, behaviour), recipe.rollout.temperature)
    lr = learning_rate(trainer.optimizer, step)
    grad_norm = step_optimizer(policy, lr, trainer.optimizer.weight_decay)
    metrics = loss_metrics(trainer.loss, total_stats(stats)) | (behaviour_metrics(behaviour) if behaviour else {})
    seconds = time.perf_counter() - started
    metrics |= {
        "grad_norm": grad_norm,
        "lr": lr,
        **plan.metrics(),
        "seconds": seconds,
        "tokens_per_second": plan.num_tokens / seconds,
    }
    return {f"train/{name}": value for name, value in metrics.items()}


def policy_parts(batch: Batch, plan: StepPlan, trainer: TrainerSection) -> Parts[PolicyPart]:
    """This rank's micro-batches."""
    groups = plan.packing.microbatches[data_parallel_rank()]
    return Parts(groups, partial(policy_part, batch, plan.sequences, trainer.tp))


def step_behaviour(parts: Sequence[PolicyPart], params: BehaviourParams) -> Behaviour:
    """Behaviour shaping over all tokens of the step. A collective."""

    def sums(part: PolicyPart) -> Tensor:
        return advantage_sums(sequence_counts(part.flags, part.layout), part.advantages)

    total = torch.stack(list(map(sums, parts))).sum(0)
    return behaviour_of(over_replicas(total), params.kappa, params.low, params.high)


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


def policy_part(batch: Batch, sequences: StepSequences, tp: int, indices: Sequence[int]) -> PolicyPart:
    """The micro-batch of the sequences `indices`; reads no other tokens."""
    bounds = sequences.bounds(indices)
    columns = (batch.tokens, batch.logprobs, batch.loss_mask, batch.error_mask)
    tokens, logprobs, trained, errors = (sequences.select(column, indices) for column in columns)
    return PolicyPart(
        packed_tokens=pack_tokens(tokens, bounds, trained.astype(bool), tp),
        rollout_logprobs=torch.as_tensor(logprobs, device=device()),
        flags=torch.as_tensor(trained | errors << 1, device=device()),
        advantages=torch.as_tensor(batch.advantages[list(indices)], device=device()),
        weights=torch.as_tensor(batch.weights[list(indices)], device=device()),
        layout=TokenLayout.build(torch.as_tensor(bounds)).to(device()),
    )


def check_finite(batch: Batch, sequences: StepSequences, groups: Sequence[Sequence[int]]) -> None:
    """Raises ValueError that names the column, on every rank alike, so that none is left waiting; a rank reads the log-probs of
    its own `groups`. A collective."""
    own = (sequences.select(batch.logprobs, [index]) for indices in groups for index in indices)
    found = {"logprobs": max(map(defect, own), default=0)}
    found |= {name: defect(getattr(batch, name)) for name in ("advantages", "weights")}
    worst = over_replicas(torch.tensor(list(found.values()), device=device()), dist.ReduceOp.MAX)
    for name, rank in zip(found, worst.tolist(), strict=True):
        if rank:
            raise ValueError(f"batch: {name} holds {DEFECTS[rank]}; the engine or the credit step went wrong")


def defect(column: npt.NDArray[np.floating[Any]]) -> int:
    """Place in DEFECTS of what the column holds."""
    if np.isfinite(column).all():
        return 0
    return 2 if np.isnan(column).any() else 1
