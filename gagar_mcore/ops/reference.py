"""The policy losses in plain PyTorch: what the fused step must equal."""

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.spec import LossSpec
from gagar_mcore.ops.stats import PolicyStats

TRAINED, FLAGGED = 1, 2
LOG_RATIO_LIMIT = 80.0


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
    """The arguments and results of `gagar_mcore.ops.fused.policy_loss`, in the precision of `logprobs`, at least float32."""
    precision = torch.promote_types(logprobs.dtype, torch.float32)
    place, sequence, token = trained(flags, layout)
    new = logprobs[place].to(precision)
    rollout = rollout_logprobs.detach()[token].to(precision)
    old = rollout if old_logprobs is None else old_logprobs.detach()[place].to(precision)
    positive = advantages[sequence] >= 0
    outcome, weight = (column.detach()[sequence].to(precision) for column in (advantages, weights))
    flagged = (flags[token] & FLAGGED) > 0
    advantage = outcome if behaviour is None else shaped(outcome, flagged, behaviour)

    log_ratio = new - old
    if spec.name == "gspo":
        means = sequence_means(log_ratio.detach(), sequence, layout.num_sequences, cp_group)
        log_ratio = means[sequence] + new - new.detach()
    ratio = held(log_ratio).exp()
    value, masked = token_losses(new, ratio, advantage, positive, spec)
    cap = float("inf") if spec.tis_cap is None else spec.tis_cap
    correction = torch.ones_like(rollout) if spec.tis_cap is None else held(old - rollout).exp()
    importance = correction.clamp(max=cap)
    kl = torch.zeros_like(rollout)
    if ref_logprobs is not None:
        gap = ref_logprobs.detach()[place].double() - new.double()  # in float32 the digits of a small one would be lost
        kl = (held(gap).expm1() - gap).to(precision)
    value = importance * value + spec.kl_coef * kl if spec.kl_coef > 0 else importance * value
    loss = (weight * value).double().sum()
    ones, difference = torch.ones_like(rollout), (new - rollout).abs()
    per_token = (ones, masked & positive, masked & ~positive, ratio, difference, rollout - new, kl)
    return loss, stats_of(loss, (*per_token, importance, correction > cap, flagged), (ratio, difference))


def stats_of(loss: Tensor, per_token: tuple[Tensor, ...], extremes: tuple[Tensor, ...]) -> PolicyStats:
    """Columns `[N]` of the trained tokens in the order of `SUMS` without the loss, and of `MAXIMA`."""
    sums = torch.stack([loss.detach(), *(column.detach().double().sum() for column in per_token)])
    floor = loss.new_zeros(1)
    return PolicyStats(sums, torch.stack([torch.cat([floor, column.detach().double()]).max() for column in extremes]))


def token_losses(logprob: Tensor, ratio: Tensor, advantage: Tensor, positive: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """Loss of each token and whether mask or clip changed it. Bounds go by `positive`: the sequence's advantage is at least 0.

    With r the ratio and sg its value without gradient:
    mimo (MiMo-V2.6, reported): -sg[r] M A log pi, M = 1 within the bounds and else 0.
    ppo (Schulman et al. 2017, arXiv 1707.06347): max(-r A, -clip(r) A); at A < 0 at most -dual_clip A
        (Ye et al. 2020, arXiv 1912.09729).
    gspo (Zheng et al. 2025, arXiv 2507.18071), token form: the same where r is the geometric mean ratio of the sequence.
    cispo (MiniMax-M1, arXiv 2506.13585): -sg[clip(r)] A log pi."""
    low, high = ratio.new_tensor(spec.bounds)[(~positive).long()].unbind(dim=1)
    clipped = torch.where(ratio < low, low, torch.where(ratio > high, high, ratio))
    outside = (ratio < low) | (ratio > high)
    if spec.name == "mimo":
        return torch.where(outside, 0.0, -ratio.detach() * advantage * logprob), outside
    if spec.name == "cispo":
        return -clipped.detach() * advantage * logprob, outside
    free, bounded = -ratio * advantage, -clipped * advantage
    masked = bounded > free
    value = torch.where(masked, bounded, free)
    if spec.name == "ppo" and spec.dual_clip is not None:
        ceiling = -spec.dual_clip * advantage
        too_high = (advantage < 0) & (value > ceiling)
        masked, value = masked | too_high, torch.where(too_high, ceiling, value)
    return value, masked


def held(log_ratio: Tensor) -> Tensor:
    """Log-ratios within +-80, beyond which a float32 ratio means nothing."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def shaped(outcome: Tensor, flagged: Tensor, behaviour: Behaviour) -> Tensor:
    """Token advantages after behaviour shaping."""
    alpha, beta = behaviour.scale.to(outcome.dtype)
    gain = torch.where(flagged, 0.0, alpha)
    cost = torch.where(flagged, behaviour.kappa, beta)
    return torch.where(outcome > 0, gain, cost) * outcome


def sequence_means(values: Tensor, sequence: Tensor, num_sequences: int, cp_group: dist.ProcessGroup | None) -> Tensor:
    """Mean `[S]` over each sequence's tokens on all context-parallel ranks, 0 where it has none."""
    ones = torch.ones_like(values)  # three columns, as the fused step has: ranks with and without it can work together
    sums = torch.zeros(num_sequences, 3, dtype=torch.float64, device=values.device)
    sums.index_add_(0, sequence, torch.stack([values, ones, torch.zeros_like(ones)], dim=1).double())
    if cp_group is not None:
        dist.all_reduce(sums, group=cp_group)
    return (sums[:, 0] / sums[:, 1].clamp(min=1)).to(values.dtype)


def token_advantages(flags: Tensor, advantages: Tensor, layout: TokenLayout, behaviour: Behaviour | None = None) -> Tensor:
    """The arguments and result of `gagar_mcore.ops.fused.token_advantages`."""
    place, sequence, token = trained(flags, layout)
    out = torch.zeros(layout.num_local, device=flags.device)
    outcome = advantages[sequence].float()
    flagged = (flags[token] & FLAGGED) > 0
    out[place] = outcome if behaviour is None else shaped(outcome, flagged, behaviour)
    return out


def sequence_counts(flags: Tensor, layout: TokenLayout) -> Tensor:
    """The arguments and result of `gagar_mcore.ops.fused.sequence_counts`."""
    _, sequence, token = trained(flags, layout)
    counts = torch.zeros(layout.num_sequences, 2, dtype=torch.float64, device=flags.device)
    flagged = (flags[token] & FLAGGED) > 0
    return counts.index_add_(0, sequence, torch.stack([torch.ones_like(flagged), flagged], dim=1).double())


def trained(flags: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Local positions whose logits predict a token to train, ascending, with sequence and index of that token."""
    token = layout.predicted_tokens()
    place = torch.nonzero((token >= 0) & ((flags[token] & TRAINED) > 0))[:, 0] if len(flags) else token[:0]
    return place, layout.sequences()[place], token[place]
