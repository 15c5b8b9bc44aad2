"""All metrics of all steps as a table."""

import math
from collections.abc import Mapping

from gagar_mcore.tracking.metrics import Metrics
from gagar_mcore.tracking.text import clip
from gagar_mcore.viewer.html import Markup, element

MAX_ROWS = 400


def steps_table(metrics: Mapping[int, Metrics]) -> Markup:
    """A row a step, newest first, folded; the names stand in two lines, section over metric."""
    steps = sorted(metrics, reverse=True)[:MAX_ROWS]
    names = list(dict.fromkeys(name for step in steps for name in metrics[step]))
    head = element("tr", element("th", "step"), *[element("th", clip(name, 60).replace("/", "\n", 1)) for name in names])
    rows = [
        element("tr", element("th", str(step)), *[element("td", _cell(metrics[step].get(name, math.nan))) for name in names])
        for step in steps
    ]
    left_out = f", the last {MAX_ROWS}" if len(metrics) > MAX_ROWS else ""
    table = element("table", element("thead", head), element("tbody", *rows), class_="steps")
    summary = element("summary", f"All metrics of {len(metrics):,} steps{left_out}")
    return element("details", summary, element("div", table, class_="scroll"), class_="fold")


def _cell(value: float) -> str:
    if not math.isfinite(value):
        return ""
    if value == round(value) and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"
