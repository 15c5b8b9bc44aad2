"""Random packed batches for the tests of the policy losses, and the losses by their formulas, one token at a time."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.spec import LossSpec


@dataclass(frozen=True)
class Case:
    """Whole columns, a value at index t belonging to token t. logprobs, rollout, old, ref `[T]` float64; flags `[T]` uint8."""

    lengths: tuple[int, ...]
    logprobs: Tensor
    rollout: Tensor
    old: Tensor
    ref: Tensor
    flags: Tensor
    advantages: Tensor
    weights: Tensor

    @property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0)

    def spans(self):
        bounds = self.cu_seqlens.tolist()
        return [range(a, b) for a, b in pairwise(bounds)]

    def select(self, sequences) -> "Case":
        """The same batch cut down to some of its sequences."""
        spans = self.spans()
        index = torch.tensor([t for s in sequences for t in spans[s]], dtype=torch.int64)
        tokens = {name: getattr(self, name)[index] for name in ("logprobs", "rollout", "old", "ref", "flags")}
        chosen = torch.tensor(list(sequences), dtype=torch.int64)
        lengths = tuple(self.lengths[s] for s in sequences)
        return Case(lengths=lengths, advantages=self.advantages[chosen], weights=self.weights[chosen], **tokens)

    def local(self, column: Tensor, layout: TokenLayout, fill: float = 0.0) -> Tensor:
        """A whole column as it lies at this rank's logits; `fill` where nothing is predicted."""
        token = layout.predicted_tokens()
        padded = torch.cat([column, column.new_full((1,), fill)])
        return padded[torch.where(token < 0, len(column), token)]

    def to(self, dtype: torch.dtype) -> "Case":
        return replace(self, **{name: getattr(self, name).to(dtype) for name in ("logprobs", "rollout", "old", "ref")})


def random_case(lengths, seed: int = 0, trained: float = 0.6, flagged: float = 0.2) -> Case:
    generator = torch.Generator().manual_seed(seed)
    total, count = sum(lengths), len(lengths)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    rollout = -3 * uniform(total)
    logprobs = rollout + 0.5 * normal(total)
    flags = (uniform(total) < trained).to(torch.uint8) + 2 * (uniform(total) < flagged).to(torch.uint8)
    advantages = normal(count) * (uniform(count) > 0.1)
    return Case(
        tuple(lengths), logprobs, rollout, rollout + 0.2 * normal(total), logprobs + 0.3 * normal(total), flags, advantages,
        uniform(count) / 10,
    )  # fmt: skip


def by_formula(case: Case, spec: LossSpec, *, old=False, ref=False, behaviour: Behaviour | None = None):
    """Loss, gradient `[T]` to the log-prob of each token, and sums by name, in Python floats. First tokens never count."""
    gradient = [0.0] * sum(case.lengths)
    sums = dict.fromkeys(
        ("loss", "tokens", "masked_positive", "masked_negative", "ratio", "importance", "truncated", "flagged"), 0.0
    )
    sums["ref_kl"] = 0.0
    for s, span in enumerate(case.spans()):
        outcome, weight = float(case.advantages[s]), float(case.weights[s])
        trained = [t for t in span[1:] if case.flags[t] & 1]
        logs = {t: float(case.logprobs[t] - (case.old if old else case.rollout)[t]) for t in trained}
        low, high = spec.bounds[outcome < 0]
        for t in trained:
            r = math.exp(sum(logs.values()) / len(logs) if spec.name == "gspo" else logs[t])
            flagged = bool(case.flags[t] & 2)
            a = outcome
            if behaviour is not None:
                alpha, beta = behaviour.scale.tolist()
                a *= (0.0 if flagged else alpha) if a > 0 else (behaviour.kappa if flagged else beta)
            value, slope, masked = one_token(spec, float(case.logprobs[t]), r, a, low, high)
            tis = min(math.exp(case.old[t] - case.rollout[t]), spec.tis_cap) if spec.tis_cap else 1.0
            gap = float(case.ref[t] - case.logprobs[t]) if ref else 0.0
            kl = math.expm1(gap) - gap
            gradient[t] = weight * (tis * slope - spec.kl_coef * math.expm1(gap))
            sums["loss"] += weight * (tis * value + spec.kl_coef * kl)
            sums["tokens"] += 1
            sums["masked_positive" if outcome >= 0 else "masked_negative"] += masked
            sums["ratio"] += r
            sums["importance"] += tis
            sums["truncated"] += bool(spec.tis_cap) and math.exp(case.old[t] - case.rollout[t]) > spec.tis_cap
            sums["flagged"] += flagged
            sums["ref_kl"] += kl
    return sums["loss"], torch.tensor(gradient, dtype=torch.float64), sums


def one_token(spec: LossSpec, logprob: float, r: float, a: float, low: float, high: float):
    """Loss, slope, and whether mask or clip had a part in it."""
    if spec.name == "mimo":
        kept = low <= r <= high
        return -kept * r * a * logprob, -kept * r * a, not kept
    clipped = min(max(r, low), high)
    if spec.name == "cispo":
        return -clipped * a * logprob, -clipped * a, clipped != r
    value, slope, masked = -r * a, -r * a, False
    if -clipped * a > value:
        value, slope, masked = -clipped * a, 0.0, True
    if spec.name == "ppo" and spec.dual_clip and a < 0 and value > -spec.dual_clip * a:
        value, slope, masked = -spec.dual_clip * a, 0.0, True
    return value, slope, masked
