"""How long things take in a simulation: log-normal, as waits of servers and sandboxes are, most short and some very long."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, pstdev, pvariance
from typing import Self


@dataclass(frozen=True, slots=True)
class Latency:
    """median: in seconds, or whatever is drawn; spread: standard deviation of the logarithm, 0 where every draw is the median."""

    median: float
    spread: float = 0.0

    def draw(self, rng: Random) -> float:
        return self.median * math.exp(rng.gauss(0.0, self.spread)) if self.spread else self.median

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.spread**2 / 2)

    @classmethod
    def alike(cls, values: Sequence[float]) -> Self:
        """Of the mean and variance of `values`, none below 0: what is at work follows the mean, and a few that took no time
        would widen the likeliest one until its longest draws are absurd. Raises ValueError where all are 0."""
        mean = fmean(values) if values else 0.0
        if mean <= 0:
            raise ValueError("no value above 0 to fit a latency to")
        relative = 1 + pvariance(values) / mean**2
        return cls(mean / math.sqrt(relative), math.sqrt(math.log(relative)))

    @classmethod
    def fitted(cls, values: Sequence[float]) -> Self:
        """Of greatest likelihood for `values`, of which those above 0 count. Raises ValueError where there are none."""
        logarithms = [math.log(value) for value in values if value > 0]
        if not logarithms:
            raise ValueError("no value above 0 to fit a latency to")
        return cls(math.exp(fmean(logarithms)), pstdev(logarithms))
