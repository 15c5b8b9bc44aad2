"""The policy loss in plain PyTorch."""

from dataclasses import dataclass

import torch
from torch import Tensor

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """What a loss call saw, over its trained tokens; two calls combine by sums and maxima.

    sums `[5]` float64: loss, tokens, tokens masked out, ratio, |log-prob difference|.
    maxima `[2]` float64: ratio, |log-prob difference|.
    """

    sums: Tensor
    maxima: Tensor

    def combine(self, other: "PolicyStats") -> "PolicyStats":
        return PolicyStats(self.sums + other.sums, torch.maximum(self.maxima, other.maxima))

    def metrics(self) -> dict[str, float]:
        loss, tokens, masked, ratio, difference = self.sums.tolist()
        ratio_max, difference_max = self.maxima.tolist()
        count = max(tokens, 1.0)
        return {
            "loss": loss,
            "trained_tokens": tokens,
            "masked_share": masked / count,
            "ratio_mean": ratio / count,
            "ratio_max": ratio_max,
            "rollout_logprob_abs_diff": difference / count,
            "rollout_logprob_max_diff": difference_max,
        }


def policy_loss(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    loss_mask: Tensor,
    advantages: Tensor,
    weights: Tensor,
    cu_seqlens: Tensor,
    positive_bounds: Bounds,
    negative_bounds: Bounds,
) -> tuple[Tensor, PolicyStats]:
    """L = - sum_s w_s A_s sum_t sg[r_t] M_t log pi_t over the tokens t of sequence s with `loss_mask` 1, where
    r = pi / mu (mu recorded at generation) and M is 1 where r lies within the bounds of the advantage's sign
    (MiMo-V2.6's policy loss; the weight w_s carries the whole aggregation).

    logprobs, rollout_logprobs `[T]` float, loss_mask `[T]`, advantages, weights `[S]` float64, cu_seqlens `[S + 1]`.
    Returns the scalar loss, whose gradient flows to `logprobs` only, and the statistics of the call. The sum is over
    what is given: parts of a batch add up to the whole.
    """
    trained = loss_mask.bool()
    sequence = torch.repeat_interleave(torch.arange(len(advantages), device=cu_seqlens.device), cu_seqlens.diff())[trained]
    logprob = logprobs[trained]
    difference = logprob.detach().double() - rollout_logprobs[trained].double()
    ratio = difference.exp()
    advantage = advantages[sequence]
    low, high = (torch.where(advantage >= 0, p, n) for p, n in zip(positive_bounds, negative_bounds, strict=True))
    kept = (ratio >= low) & (ratio <= high)
    coefficient = torch.where(kept, weights[sequence] * advantage * ratio, 0.0)
    loss = -(coefficient * logprob).sum()
    return loss, _stats(loss.detach(), ratio, difference.abs(), kept)


def _stats(loss: Tensor, ratio: Tensor, difference: Tensor, kept: Tensor) -> PolicyStats:
    count = torch.tensor(float(len(ratio)), dtype=torch.float64, device=ratio.device)
    sums = torch.stack([loss.double(), count, (~kept).sum().double(), ratio.sum(), difference.sum()])
    floor = ratio.new_zeros(1)
    return PolicyStats(sums, torch.stack([torch.cat([floor, ratio]).max(), torch.cat([floor, difference]).max()]))
