"""What a run achieved, in two rates: held-back pass rate and clean share, before and after."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.tracking.metrics import Metrics, scan_metrics

WINDOW = 5
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate at the start and the end of a run, and on which tasks. `end_margin` is half of the end's 95 % interval,
    None where the number of sessions is not known."""

    title: str
    start: float
    end: float
    where: str
    end_margin: float | None = None


def headline(metrics: Mapping[int, Metrics]) -> list[Rate]:
    """Pass rate and clean share on held-back tasks; on the training tasks where a run has fewer than two evaluations."""
    evaluated = [step for step, m in metrics.items() if math.isfinite(m.get("eval/pass_rate", math.nan))]
    return _held_back(metrics, evaluated[0], evaluated[-1]) if len(evaluated) > 1 else _trained(metrics)


def _held_back(metrics: Mapping[int, Metrics], first: int, last: int) -> list[Rate]:
    rates = []
    for title, name in (("Pass rate", "eval/pass_rate"), ("Clean share", "eval/clean_share")):
        start, end = metrics[first].get(name, math.nan), metrics[last].get(name, math.nan)
        if math.isfinite(start) and math.isfinite(end):
            end_margin = margin(end, _count(metrics[last], name))
            rates.append(Rate(title, start, end, f"held-back tasks, steps {first} and {last}", end_margin))
    return rates


def _count(metrics: Metrics, name: str) -> int | None:
    """How many sessions a rate is over: all of the evaluation, or the passing ones."""
    sessions = metrics.get("eval/sessions", math.nan)
    if not math.isfinite(sessions):
        return None
    return round(sessions if name == "eval/pass_rate" else sessions * metrics["eval/pass_rate"])


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
    rates = headline(scan_metrics(layout.metrics).steps)
    lines = [f"{r.title.lower():<12} {r.start:.3f} -> {r.end:.3f} ({r.end - r.start:+.3f}) on {r.where}" for r in rates]
    return "\n".join([*lines, f"{'report':<12} {layout.report}"])
