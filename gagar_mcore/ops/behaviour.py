"""Behaviour shaping of token advantages: tokens flagged as misbehaviour earn nothing from a good outcome and pay more for a
bad one; the rest is rescaled so that both totals over the step stay the same."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Behaviour:
    """With flag h in {0, 1}: A > 0 becomes alpha (1 - h) A, A < 0 becomes [beta (1 - h) + kappa h] A.

    scale `[2]` float64: alpha, beta. clamped `[]` int64: how many of them met a bound. Reported for MiMo-V2.6."""

    scale: Tensor
    clamped: Tensor
    kappa: float


def advantage_sums(counts: Tensor, advantages: Tensor) -> Tensor:
    """Sums `[4]` float64 over tokens: A > 0 in all and without a flag, A < 0 in all and without a flag; parts of a step add up.

    counts `[S, 2]` float64: a sequence's trained tokens and those with a flag; advantages `[S]` float64."""
    tokens = torch.stack([counts[:, 0], counts[:, 0] - counts[:, 1]], dim=1)
    return torch.cat([(sign[:, None] * tokens).sum(0) for sign in (advantages.clamp(min=0), advantages.clamp(max=0))])


def behaviour_of(sums: Tensor, kappa: float, low: float, high: float) -> Behaviour:
    """alpha = sum_{A>0} A / sum_{A>0} (1-h) A, beta = (sum_{A<0} A - kappa sum_{A<0} h A) / sum_{A<0} (1-h) A, from the
    `advantage_sums` of the whole step, each clamped to [low, high], and 1 where its denominator is 0."""
    gain, clean_gain, cost, clean_cost = sums.unbind()
    wanted = torch.stack([gain, cost - kappa * (cost - clean_cost)])
    clean = torch.stack([clean_gain, clean_cost])
    scale = torch.where(clean == 0, 1.0, wanted / torch.where(clean == 0, 1.0, clean))
    bounded = scale.clamp(low, high)
    return Behaviour(bounded, (bounded != scale).sum(), kappa)
