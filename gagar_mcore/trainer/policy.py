"""One reinforcement-learning step: a batch of trajectories, its optimizer steps, its metrics."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain

from torch import Tensor

from gagar_mcore.config.learning import OptimizerSection
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.models.routing import agreement
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.batch_checks import check_batch
from gagar_mcore.trainer.microbatch import device
from gagar_mcore.trainer.parts import Parts, plan_metrics, plan_step
from gagar_mcore.trainer.policy_loss import PartStats, behaviour_metrics, loss_metrics, part_loss, step_behaviour, total_stats
from gagar_mcore.trainer.policy_part import PolicyPart, ScoredParts, policy_parts, split_batch
from gagar_mcore.trainer.quantise import pass_weights
from gagar_mcore.trainer.scoring import Reference, score
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.update import accumulate_gradients, step_optimizer


def apply_batch(policy: Policy, batch: Batch, recipe: Recipe, step: int, reference: Reference | None = None) -> dict[str, float]:
    """Take step `step` (from 1) on `batch`, with one optimizer step a mini-batch; returns metrics by name. A collective."""
    started = time.perf_counter()
    trainer, shaping = recipe.trainer, recipe.method.behaviour()
    batches = split_batch(batch, trainer.minibatches)
    plans = [plan_step(part.cu_seqlens, trainer, policy.model) for part in batches]
    minibatches = [policy_parts(part, plan, trainer) for part, plan in zip(batches, plans, strict=True)]
    for part, plan, parts in zip(batches, plans, minibatches, strict=True):
        check_batch(part, policy.model, trainer, plan.sequences, parts.groups)
    behaviour = step_behaviour(chain(*minibatches), shaping) if shaping else None
    lr = learning_rate(trainer.optimizer, step)
    stats: list[PartStats] = []
    norms: list[float] = []
    for scored in with_scores(policy, minibatches, recipe, reference):
        loss = partial(part_loss, trainer.loss, behaviour)
        with pass_weights(policy, trainer):
            stats += accumulate_gradients(policy, scored, loss, recipe.rollout.temperature)
        norms.append(step_optimizer(policy, lr, trainer.optimizer.weight_decay))
    metrics = loss_metrics(trainer, total_stats(stats), len(norms)) | (behaviour_metrics(behaviour) if behaviour else {})
    if trainer.routing == "replay":
        metrics["router_agreement"] = agreement(policy.replays, device())
    seconds = time.perf_counter() - started
    tokens = sum(plan.num_tokens for plan in plans)
    metrics |= {
        "grad_norm": sum(norms) / len(norms),
        "lr": lr,
        **plan_metrics(plans),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }
    return {f"train/{name}": value for name, value in metrics.items()}


def with_scores(
    policy: Policy, minibatches: Sequence[Parts[PolicyPart]], recipe: Recipe, reference: Reference | None
) -> list[ScoredParts]:
    """Log-probs of the policy before its first update, where a later one is compared with it, and of the reference."""

    def score_all(wanted: bool) -> list[list[Tensor] | None]:
        return [score(policy, parts, recipe.rollout.temperature) if wanted else None for parts in minibatches]

    compared = recipe.trainer.loss.old == "current" and len(minibatches) > 1
    with pass_weights(policy, recipe.trainer) if compared else nullcontext():
        olds = score_all(compared)
    with reference.in_place_of(policy) if reference else nullcontext():
        references = score_all(reference is not None)
    return [ScoredParts(*columns) for columns in zip(minibatches, olds, references, strict=True)]


def learning_rate(section: OptimizerSection, step: int) -> float:
    """Linear warm-up, then constant; `step` counts from 1."""
    return section.lr * min(1.0, step / max(section.warmup_steps, 1))
