"""What a run achieved, in two rates: held-back pass rate and clean share, before and after."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.tracking.metrics import Metrics
from gagar_mcore.viewer.load import RunReader

WINDOW = 5
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate at the start and the end of a run; margins are half of a 95 % interval, None where the count is not known.
    `where` says what was measured."""

    title: str
    start: float
    end: float
    where: str
    start_margin: float | None = None
    end_margin: float | None = None


def headline(reader: RunReader, metrics: Mapping[int, Metrics]) -> list[Rate]:
    """Pass rate and clean share on held-back tasks; of the training tasks where a run has fewer than two evaluations."""
    evaluated = [step for step, m in metrics.items() if math.isfinite(m.get("eval/pass_rate", math.nan))]
    if len(evaluated) >= 2:
        first, last = evaluated[0], evaluated[-1]
        return _held_back(
            metrics[first], metrics[last], reader.sessions(first), reader.sessions(last), f"step {first} and {last}"
        )
    return _trained(metrics)


def _held_back(first: Metrics, last: Metrics, first_count: int | None, last_count: int | None, steps: str) -> list[Rate]:
    where = f"held-back tasks, {steps}"
    rates = []
    for title, name in (("Pass rate", "pass_rate"), ("Clean share", "clean_share")):
        start, end = (m.get(f"eval/{name}", math.nan) for m in (first, last))
        if math.isfinite(start) and math.isfinite(end):
            counts = [
                n and (n if name == "pass_rate" else round(n * m["eval/pass_rate"]))
                for n, m in ((first_count, first), (last_count, last))
            ]
            rates.append(Rate(title, start, end, where, margin(start, counts[0]), margin(end, counts[1])))
    return rates


def _trained(metrics: Mapping[int, Metrics]) -> list[Rate]:
    rates = []
    for title, name in (("Pass rate", "rollout/pass_rate"), ("Clean share", "rollout/clean_share")):
        values = [value for m in metrics.values() if math.isfinite(value := m.get(name, math.nan))]
        window = min(WINDOW, len(values) // 2)
        if window:
            where = f"training tasks, first and last {window} steps" if window > 1 else "training tasks, first and last step"
            rates.append(Rate(title, fmean(values[:window]), fmean(values[-window:]), where))
    return rates


def margin(rate: float, count: int | None) -> float | None:
    """Half the width of the Wilson score interval (95 %) of a rate over `count` independent draws."""
    if not count:
        return None
    return _Z95 / (1 + _Z95**2 / count) * math.sqrt(rate * (1 - rate) / count + _Z95**2 / (4 * count**2))


def terminal_summary(run: Path) -> str:
    """A few plain lines for the end of `gagar train`."""
    layout = RunLayout(run)
    reader = RunReader(layout)
    metrics = reader.metrics()
    lines = [
        f"{r.title.lower():<12} {r.start:.3f} -> {r.end:.3f} ({r.end - r.start:+.3f}) on {r.where}"
        for r in headline(reader, metrics)
    ]
    return "\n".join([*lines, f"{'report':<12} {layout.report}"])
