"""The constants of the credit step."""

import math
from dataclasses import dataclass
from typing import Literal

Method = Literal["gagar", "grpo", "downweight_only"]
CRITERIA = ("approach", "precision", "minimality", "side_effects", "consistency")


@dataclass(frozen=True, slots=True)
class CreditParams:
    """Method and constants; the numbers are as reported for GAGAR. Raises ValueError naming the field.

    method: `gagar` discounts and rescales, `downweight_only` discounts without rescaling, `grpo` keeps the outcome advantage.
    cap: upper bound of lambda, None for none. min_valid: a group with fewer valid trajectories is dropped.
    weights: share of each of `CRITERIA` in the rank score W.
    t1_min: T1 needs every criterion at least this. t3_approach: approach up to this is T3.
    t3_minimality, t3_side_effects: both criteria up to these are T3.
    t1_top, t1_other: factors of the top tied group of T1 and of the rest of T1. t2_best, t2_worst: ends of the line of T2.
    t3: factor of T3.
    """

    method: Method = "gagar"
    cap: float | None = 1.5
    min_valid: int = 2
    weights: tuple[float, float, float, float, float] = (0.30, 0.25, 0.20, 0.15, 0.10)
    t1_min: int = 4
    t3_approach: int = 1
    t3_minimality: int = 2
    t3_side_effects: int = 2
    t1_top: float = 1.0
    t1_other: float = 0.9
    t2_best: float = 0.85
    t2_worst: float = 0.4
    t3: float = 0.2

    def __post_init__(self) -> None:
        if self.method not in ("gagar", "grpo", "downweight_only"):
            raise ValueError(f"method: must be gagar, grpo or downweight_only, got {self.method!r}")
        if self.cap is not None and not (math.isfinite(self.cap) and self.cap >= 1):
            raise ValueError(f"cap: must be a finite number of at least 1, or none, got {self.cap!r}")
        if self.min_valid < 2:
            raise ValueError(f"min_valid: must be at least 2, got {self.min_valid!r}")
        if len(self.weights) != len(CRITERIA) or not all(0 <= w <= 1 for w in self.weights):
            raise ValueError(f"weights: must be {len(CRITERIA)} numbers from 0 to 1, got {self.weights!r}")
        for name in ("t1_top", "t1_other", "t2_best", "t2_worst", "t3"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: a discount factor lies in (0, 1], got {getattr(self, name)!r}")
