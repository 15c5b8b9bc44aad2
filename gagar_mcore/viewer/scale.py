"""Scales of a chart: from values to positions, with round ticks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `[low, high]` (of logarithms, where `log`) linearly to `[start, end]` in pixels."""

    low: float
    high: float
    start: float
    end: float
    ticks: list[float]
    log: bool = False

    def __call__(self, value: float) -> float:
        placed = math.log10(max(value, 10**self.low)) if self.log else value
        share = (placed - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)


def linear(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale over round numbers around all `values`."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    step = round_step((high - low) / 4) if high > low else round_step(max(abs(high), 1.0) / 4)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return Scale(first * step, last * step, start, end, [k * step for k in range(first, last + 1)])


def whole(numbers: Sequence[int], start: float, end: float) -> Scale:
    """A scale from the least to the greatest of `numbers`, with ticks at round ones among them."""
    low = min(numbers)
    high = max(max(numbers), low + 1)
    step = round(round_step(max((high - low) / 4, 1.0), factors=(1, 2, 5, 10)))
    return Scale(low, high, start, end, [float(k * step) for k in range(math.ceil(low / step), high // step + 1)])


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale over the powers of ten around the positive `values`."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    high = max(high, low + 1)
    step = max(1, math.ceil((high - low) / 5))
    return Scale(low, high, start, end, [10.0**k for k in range(low, high + 1, step)], log=True)


def round_step(rough: float, factors: Sequence[float] = (1, 2, 2.5, 5, 10)) -> float:
    """The least of `factors` times a power of ten that is no less than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in factors if factor * power >= rough * (1 - 1e-9))


def tick_format(scale: Scale) -> Callable[[float], str]:
    """How to write numbers at the resolution of a scale's ticks."""
    if scale.log:
        return lambda value: f"{value:.0e}".replace("e-0", "e-").replace("e+00", "") if value < 0.01 else f"{value:g}"
    step = scale.ticks[1] - scale.ticks[0] if len(scale.ticks) > 1 else 1.0
    decimals = next((d for d in range(8) if math.isclose(round(step, d), step, rel_tol=1e-6)), 8)
    return lambda value: f"{value:,.{decimals}f}"
