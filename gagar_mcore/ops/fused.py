"""The fused advantage step: one pass from sequence advantages and token log-probs to loss, gradient and metrics."""

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.ops import op, reference
from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.checks import check_behaviour, check_columns, check_spec
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.library import library
from gagar_mcore.ops.spec import LossSpec
from gagar_mcore.ops.stats import PolicyStats


def policy_loss(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    flags: Tensor,
    advantages: Tensor,
    weights: Tensor,
    layout: TokenLayout,
    spec: LossSpec,
    *,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    behaviour: Behaviour | None = None,
    cp_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, PolicyStats]:
    """Loss `[]` float64 over this rank's positions, whose gradient flows to `logprobs` only, and what it saw.

    L = sum_s w_s sum_t [importance_t l(r_t, A_t, log pi_t) + kl_coef k3_t], with l as in `reference.token_losses`; calls over
    parts of a batch, and over context-parallel ranks, add up to the whole.
    logprobs, old_logprobs, ref_logprobs `[num_local]` float32 or bfloat16, as they lie at the logits (`layout`): of the policy
    under training, of the policy at the ratio's bottom (None: the rollout's), of a reference.
    rollout_logprobs `[num_tokens]` float32, of the sampling distribution; flags `[num_tokens]` uint8, 1 on tokens to train, + 2
    on those that misbehaved: whole sequences, on every context-parallel rank.
    advantages, weights `[S]` float64; the weight carries the whole aggregation.
    cp_group sums `gspo`'s log-ratios; without it a sequence's tokens must all be here. Log-ratios are held within +-80.
    Equal inputs give equal bits on one kind of processor. Raises ValueError that names the argument.
    """
    columns = {"logprobs": logprobs, "old_logprobs": old_logprobs, "ref_logprobs": ref_logprobs}
    check_columns(columns, rollout_logprobs, flags, advantages, weights, layout)
    check_behaviour(behaviour, flags.device)
    check_spec(spec, old_logprobs, ref_logprobs, layout, cp_group)
    if not is_compiled(logprobs.device.type):
        return reference.policy_loss(
            logprobs, rollout_logprobs, flags, advantages, weights, layout, spec,
            old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, behaviour=behaviour, cp_group=cp_group,
        )  # fmt: skip
    counts = None
    if spec.name == "gspo":
        bottom = rollout_logprobs if old_logprobs is None else None
        counts = op.sequence_counts(flags, logprobs.detach(), old_logprobs, bottom, *place(layout))
        if cp_group is not None:
            dist.all_reduce(counts, group=cp_group)
    loss, _, sums, maxima = op.policy_step(
        logprobs, rollout_logprobs, flags, old_logprobs, ref_logprobs, advantages, weights, counts,
        None if behaviour is None else behaviour.scale, *place(layout), spec.name, constants(spec, behaviour),
    )  # fmt: skip
    return loss, PolicyStats(sums, maxima)


def token_advantages(flags: Tensor, advantages: Tensor, layout: TokenLayout, behaviour: Behaviour | None = None) -> Tensor:
    """Advantage `[num_local]` float32 of the token that each local position predicts, 0 where it is not trained.

    Arguments as in `policy_loss`. Raises ValueError that names the argument."""
    check_columns({}, None, flags, advantages, None, layout)
    check_behaviour(behaviour, flags.device)
    if not is_compiled(flags.device.type):
        return reference.token_advantages(flags, advantages, layout, behaviour)
    scale = None if behaviour is None else behaviour.scale
    return op.token_advantages(flags, advantages, scale, *place(layout), behaviour.kappa if behaviour else 0.0)


def sequence_counts(flags: Tensor, layout: TokenLayout) -> Tensor:
    """Trained tokens and flagged ones among them `[S, 2]` float64 of each sequence, at this rank's positions.

    Arguments as in `policy_loss`. Raises ValueError that names the argument."""
    check_columns({}, None, flags, None, None, layout)
    if not is_compiled(flags.device.type):
        return reference.sequence_counts(flags, layout)
    return op.sequence_counts(flags, None, None, None, *place(layout))[:, 1:]


@torch.compiler.assume_constant_result
def is_compiled(device: str) -> bool:
    """Whether a compiled library serves tensors on `device`."""
    return device in ("cpu", "cuda") and library("cuda" if device == "cuda" else "cpu") is not None


def place(layout: TokenLayout) -> tuple[Tensor, Tensor, int, int, int, bool]:
    return layout.cu_seqlens, layout.cu_local, layout.num_local, layout.cp_size, layout.cp_rank, layout.halved


def constants(spec: LossSpec, behaviour: Behaviour | None) -> list[float]:
    """Bounds by sign, dual clip and importance cap (0: none), KL weight, kappa."""
    kappa = behaviour.kappa if behaviour else 0.0
    positive, negative = spec.bounds
    return [*positive, *negative, spec.dual_clip or 0.0, spec.tis_cap or 0.0, spec.kl_coef, kappa]
