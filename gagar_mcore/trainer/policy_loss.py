"""The policy loss of one micro-batch, and its statistics over the whole step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.config.learning import LossSection, TrainerSection
from gagar_mcore.credit import BehaviourParams
from gagar_mcore.ops.behaviour import Behaviour, advantage_sums, behaviour_of
from gagar_mcore.ops.fused import policy_loss, sequence_counts
from gagar_mcore.ops.stats import PolicyStats
from gagar_mcore.trainer.microbatch import device
from gagar_mcore.trainer.policy_part import PolicyPart
from gagar_mcore.trainer.update import Scores, context_parallel_group, over_last_stages, over_replicas


@dataclass(frozen=True, slots=True)
class PartStats:
    """Statistics of a micro-batch's loss, the sum of its trained tokens' entropies, and the loss of multi-token prediction."""

    loss: PolicyStats
    entropy: Tensor
    mtp: Tensor

    @classmethod
    def of_nothing(cls) -> "PartStats":
        return cls(PolicyStats.of_nothing(device()), *torch.zeros(2, dtype=torch.float64, device=device()))

    def combine(self, other: "PartStats") -> "PartStats":
        return PartStats(self.loss.combine(other.loss), self.entropy + other.entropy, self.mtp + other.mtp)

    def metrics(self) -> dict[str, float]:
        metrics = self.loss.metrics()
        return {**metrics, "entropy": float(self.entropy) / max(metrics["trained_tokens"], 1.0), "mtp_loss": float(self.mtp)}


def part_loss(section: LossSection, behaviour: Behaviour | None, part: PolicyPart, scores: Scores) -> tuple[Tensor, PartStats]:
    """scores: of the tokens to train. Without `part.old` the policy is the one before the step, and its ratio to that is 1."""
    assert scores.entropies is not None
    old = part.old if part.old is not None else scores.logprobs.detach()
    loss, stats = policy_loss(
        at_logits(part, scores.logprobs),
        part.rollout_logprobs,
        part.flags,
        part.advantages,
        part.weights,
        part.layout,
        section.spec(),
        old_logprobs=at_logits(part, old) if section.old == "current" else None,
        ref_logprobs=None if part.reference is None else at_logits(part, part.reference),
        behaviour=behaviour,
        cp_group=context_parallel_group(),
    )
    return loss + scores.mtp, PartStats(stats, scores.entropies.double().sum(), scores.mtp.detach().double())


def at_logits(part: PolicyPart, values: Tensor) -> Tensor:
    """Values `[N]` of the scored tokens, each where the logits that predict it lie, `[num_local]`, and 0 elsewhere."""
    return values.new_zeros(part.layout.num_local).index_put((part.packed_tokens.predicting,), values)


def step_behaviour(parts: Iterable[PolicyPart], params: BehaviourParams) -> Behaviour:
    """Behaviour shaping over all tokens of the step. A collective."""

    def sums(part: PolicyPart) -> Tensor:
        return advantage_sums(sequence_counts(part.flags, part.layout), part.advantages)

    total = torch.stack(list(map(sums, parts))).sum(0)
    return behaviour_of(over_replicas(total), params.kappa, params.low, params.high)


def total_stats(stats: Sequence[PartStats]) -> PartStats:
    """Those of the whole batch, from this rank's micro-batches. A collective."""
    measured = reduce(PartStats.combine, stats, PartStats.of_nothing())
    losses = PolicyStats(over_last_stages(measured.loss.sums), over_last_stages(measured.loss.maxima, dist.ReduceOp.MAX))
    return PartStats(losses, over_last_stages(measured.entropy), over_last_stages(measured.mtp))


def loss_metrics(trainer: TrainerSection, stats: PartStats, updates: int) -> dict[str, float]:
    """Metrics of the terms that the loss has, which is the mean of `updates` losses."""
    absent = set() if trainer.loss.kl_coef else {"ref_kl"}
    absent |= set() if trainer.loss.tis_cap else {"importance_mean", "truncated_share"}
    absent |= set() if trainer.mtp == "train" else {"mtp_loss"}
    metrics = stats.metrics()
    for name in ("loss", "mtp_loss"):
        metrics[name] /= updates
    return {name: value for name, value in metrics.items() if name not in absent}


def behaviour_metrics(behaviour: Behaviour) -> dict[str, float]:
    alpha, beta = behaviour.scale.tolist()
    return {"behaviour_alpha": alpha, "behaviour_beta": beta, "behaviour_clamped": float(behaviour.clamped)}
