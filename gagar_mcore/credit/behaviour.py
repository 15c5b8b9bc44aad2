"""Behaviour shaping: flagged tokens (tool errors and the like) share in no gain and in more of a loss; a step keeps its totals.

With flag h of a token: A > 0 -> alpha (1 - h) A and A < 0 -> [beta (1 - h) + kappa h] A, where over all trained tokens of a step
alpha = sum(A) / sum((1 - h) A) over A > 0, and beta = (sum(A) - kappa sum(h A)) / sum((1 - h) A) over A < 0."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gagar_mcore.credit.checks import Rule, check_fields, finite


@dataclass(frozen=True, slots=True)
class BehaviourParams:
    """kappa: multiplier of a negative advantage on a flagged token. low, high: bounds of alpha and beta. The numbers are as
    reported. Raises ValueError naming the field."""

    kappa: float = 2.0
    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        check_fields(self, _RULES)
        if self.low > self.high:
            raise ValueError(f"low: must not exceed high, {self.high!r}, got {self.low!r}")


_RULES: tuple[Rule, ...] = (
    ("kappa", lambda k: finite(k) and k >= 0, "must be a finite number of at least 0"),
    ("low high", lambda b: finite(b) and b > 0, "must be a finite number above 0"),
)
REPORTED = BehaviourParams()


class BehaviourSums(NamedTuple):
    """Sums of advantages over the trained tokens of a step, split by their sign; clean tokens are those without a flag."""

    positive: float
    positive_clean: float
    negative: float
    negative_flagged: float
    negative_clean: float


class BehaviourScale(NamedTuple):
    """`clamped` counts the bounds that bit, 0 to 2."""

    alpha: float
    beta: float
    clamped: int


def behaviour_sums(sequences: Iterable[tuple[float, int, int]]) -> BehaviourSums:
    """Of (advantage, trained tokens, flagged trained tokens) of every sequence of a step. Sums of parts of a step add up.
    Raises ValueError naming the number that is out of place."""
    rows = [_row(index, *sequence) for index, sequence in enumerate(sequences)]
    return BehaviourSums(*(math.fsum(column) for column in zip(*rows, strict=True))) if rows else BehaviourSums(0, 0, 0, 0, 0)


def _row(index: int, advantage: float, tokens: int, flagged: int) -> BehaviourSums:
    if not finite(advantage):
        raise ValueError(f"sequence {index}: advantage must be a finite number, got {advantage!r}")
    if not (finite(tokens) and finite(flagged) and 0 <= flagged <= tokens):
        raise ValueError(f"sequence {index}: flagged tokens must lie in 0 to {tokens!r}, the trained tokens, got {flagged!r}")
    total, hit, clean = (float(advantage) * float(count) for count in (tokens, flagged, tokens - flagged))
    return BehaviourSums(total, clean, 0.0, 0.0, 0.0) if advantage > 0 else BehaviourSums(0.0, 0.0, total, hit, clean)


def behaviour_scale(
    positive: float,
    positive_clean: float,
    negative: float,
    negative_flagged: float,
    negative_clean: float,
    params: BehaviourParams = REPORTED,
) -> BehaviourScale:
    """alpha and beta of a step from its sums (`BehaviourSums`, in this order), each 1 where its denominator is 0.
    Raises ValueError naming a sum that is no finite number."""
    sums = BehaviourSums(positive, positive_clean, negative, negative_flagged, negative_clean)
    for name, value in sums._asdict().items():
        if not finite(value):
            raise ValueError(f"{name}: must be a finite number, got {value!r}")
    alpha = positive / positive_clean if positive_clean else 1.0
    beta = (negative - params.kappa * negative_flagged) / negative_clean if negative_clean else 1.0
    bounded_alpha, bounded_beta = (min(max(scale, params.low), params.high) for scale in (alpha, beta))
    return BehaviourScale(bounded_alpha, bounded_beta, (bounded_alpha != alpha) + (bounded_beta != beta))
