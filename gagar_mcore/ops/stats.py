"""What a loss saw, as numbers that add up over micro-batches and ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

SUMS = (
    "loss",
    "tokens",
    "masked_positive",
    "masked_negative",
    "ratio",
    "rollout_diff",
    "rollout_kl",
    "ref_kl",
    "importance",
    "truncated",
    "flagged",
)
MAXIMA = ("ratio", "rollout_diff")


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """Sums and maxima over the trained tokens that a call saw; two calls combine by sums and maxima.

    sums `[11]` float64 in the order of `SUMS`: loss; tokens; tokens that the loss masks or clips, at advantages >= 0 and < 0;
    ratio of the loss; |log-prob - rollout log-prob|; rollout log-prob - log-prob, which estimates KL(rollout || policy);
    k3 estimate of KL(policy || reference), 0 without one; truncated importance weight, 1 without; tokens where it was truncated;
    tokens with a behaviour flag. maxima `[2]` float64: ratio, |log-prob - rollout log-prob|.
    """

    sums: Tensor
    maxima: Tensor

    @classmethod
    def of_nothing(cls, device: torch.device) -> "PolicyStats":
        zeros = torch.zeros(len(SUMS) + len(MAXIMA), dtype=torch.float64, device=device)
        return cls(zeros[: len(SUMS)], zeros[len(SUMS) :])

    def combine(self, other: "PolicyStats") -> "PolicyStats":
        return PolicyStats(self.sums + other.sums, torch.maximum(self.maxima, other.maxima))

    def metrics(self) -> dict[str, float]:
        """The loss, the number of trained tokens, and shares, means and maxima over them. Waits for the device."""
        total = dict(zip(SUMS, self.sums.tolist(), strict=True))
        ratio_max, diff_max = self.maxima.tolist()
        mean = {name: value / max(total["tokens"], 1.0) for name, value in total.items()}
        return {
            "loss": total["loss"],
            "trained_tokens": total["tokens"],
            "masked_share": mean["masked_positive"] + mean["masked_negative"],
            "masked_positive_share": mean["masked_positive"],
            "masked_negative_share": mean["masked_negative"],
            "ratio_mean": mean["ratio"],
            "ratio_max": ratio_max,
            "rollout_logprob_abs_diff": mean["rollout_diff"],
            "rollout_logprob_max_diff": diff_max,
            "rollout_kl": mean["rollout_kl"],
            "ref_kl": mean["ref_kl"],
            "importance_mean": mean["importance"],
            "truncated_share": mean["truncated"],
            "flagged_share": mean["flagged"],
        }
