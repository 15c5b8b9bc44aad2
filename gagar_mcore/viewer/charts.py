"""Charts of metrics over steps as inline SVG: lines, and stacked bars. Colours and fonts are the page's style."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from gagar_mcore.tracking.metrics import Metrics
from gagar_mcore.viewer.html import Markup, element
from gagar_mcore.viewer.scale import Scale, linear, logarithmic, tick_format, whole

WIDTH, HEIGHT = 380.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 10.0, 10.0, 24.0
MAX_POINTS = 200

Number = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric in a chart. `style` is a class of the page's style; `dots` marks every value, for metrics of few steps."""

    label: str
    metric: str
    style: str
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart shows. `form` writes a value, `axis` one at a tick where that is to differ from the plain number;
    `references` are labelled values drawn across, `include` values that the axis must reach."""

    title: str
    series: tuple[Series, ...]
    form: Number
    axis: Number | None = None
    references: tuple[tuple[str, float], ...] = ()
    include: tuple[float, ...] = ()
    log: bool = False
    stacked: bool = False


Point = tuple[int, dict[str, float]]


def draw(chart: Chart, metrics: Mapping[int, Metrics]) -> Markup:
    """A figure with title, legend and drawing; where there are no values, it says so."""
    points = thinned(metrics, [s.metric for s in chart.series])
    shown = [s for s in chart.series if any(s.metric in values for _, values in points)]
    body = _drawing(chart, shown, points) if shown else element("p", "no values yet", class_="empty")
    caption = element("figcaption", element("h3", chart.title), _latest(chart, shown, points))
    return element("figure", caption, body, _legend(chart, shown), class_="chart")


def thinned(metrics: Mapping[int, Metrics], names: Sequence[str]) -> list[Point]:
    """Finite values of `names` by step; of a long run, means over equally many steps, under the last step of each."""
    points = [(step, {name: m[name] for name in names if math.isfinite(m.get(name, math.nan))}) for step, m in metrics.items()]
    points = [(step, values) for step, values in points if values]
    size = max(1, math.ceil(len(points) / MAX_POINTS))
    return [_mean(points[i : i + size], names) for i in range(0, len(points), size)]


def _mean(points: Sequence[Point], names: Sequence[str]) -> Point:
    columns = {name: [values[name] for _, values in points if name in values] for name in names}
    return points[-1][0], {name: fmean(column) for name, column in columns.items() if column}


def _latest(chart: Chart, shown: Sequence[Series], points: Sequence[Point]) -> Markup | None:
    if chart.stacked or not shown:
        return None
    values = [v[shown[0].metric] for _, v in points if shown[0].metric in v]
    return element("span", chart.form(values[-1]), class_="latest")


def _legend(chart: Chart, shown: Sequence[Series]) -> Markup | None:
    if len(shown) < 2 and not chart.stacked:
        return None
    return element("ul", *[element("li", element("span", class_=f"key {s.style}"), s.label) for s in shown], class_="legend")


def _drawing(chart: Chart, shown: Sequence[Series], points: Sequence[Point]) -> Markup:
    width = _bar_width([step for step, _ in points]) if chart.stacked else 0.0
    x = whole([step for step, _ in points], LEFT + width / 2, WIDTH - RIGHT - width / 2)
    y = _vertical(chart, points)
    curves = [_bars(shown, points, x, y, width)] if chart.stacked else [_line(s, points, x, y) for s in shown]
    references = [_reference(label, value, y) for label, value in chart.references]
    parts = [_grid(chart, x, y), *references, *curves, _hover(chart, shown, points, x)]
    return element("svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=chart.title)


def _bar_width(steps: Sequence[int]) -> float:
    """Four fifths of the room between the closest steps, within bounds."""
    closest = min((b - a for a, b in pairwise(steps)), default=1)
    return min(max(1.0, round(0.8 * (WIDTH - LEFT - RIGHT) * closest / (steps[-1] - steps[0] + closest), 1)), 40.0)


def _vertical(chart: Chart, points: Sequence[Point]) -> Scale:
    values = [sum(v.values()) for _, v in points] if chart.stacked else [value for _, v in points for value in v.values()]
    values += [value for _, value in chart.references] + list(chart.include) + ([0.0] if chart.stacked else [])
    return (logarithmic if chart.log else linear)(values, HEIGHT - BOTTOM, TOP)


def _grid(chart: Chart, x: Scale, y: Scale) -> Markup:
    form, plain = chart.axis or tick_format(y), tick_format(x)
    lines = [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(t), y2=y(t), class_="rule") for t in y.ticks]
    left = [element("text", form(t), x=LEFT - 6, y=y(t) + 3, text_anchor="end") for t in y.ticks]
    below = [element("text", plain(t), x=x(t), y=HEIGHT - 8, text_anchor="middle") for t in x.ticks]
    return element("g", *lines, *left, *below, class_="axis")


def _reference(label: str, value: float, y: Scale) -> Markup:
    line = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value))
    if y(value) + 13 < HEIGHT - BOTTOM:
        name = element("text", label, x=WIDTH - RIGHT, y=y(value) + 12, text_anchor="end")
    else:
        name = element("text", label, x=LEFT + 4, y=y(value) - 4)
    return element("g", line, name, class_="reference")


def _line(series: Series, points: Sequence[Point], x: Scale, y: Scale) -> Markup:
    places = [(x(step), y(v[series.metric])) for step, v in points if series.metric in v]
    path = "M" + "L".join(f"{px:g} {py:g}" for px, py in places)
    dots = [element("circle", cx=px, cy=py, r=3) for px, py in places] if series.dots or len(places) == 1 else []
    return element("g", element("path", d=path), *dots, class_=f"line {series.style}")


def _bars(shown: Sequence[Series], points: Sequence[Point], x: Scale, y: Scale, width: float) -> Markup:
    rectangles = []
    for step, values in points:
        left, base = round(x(step) - width / 2, 1), 0.0
        for series in shown:
            top = base + max(values.get(series.metric, 0.0), 0.0)
            height = round(y(base) - y(top), 1)
            if height > 0:
                rectangles.append(element("rect", x=left, y=y(top), width=width, height=height, class_=series.style))
            base = top
    return element("g", *rectangles, class_="bars")


def _hover(chart: Chart, shown: Sequence[Series], points: Sequence[Point], x: Scale) -> Markup:
    """Over each step an area that shows its values as a tooltip and a line through the chart."""
    half = max(1.0, (WIDTH - LEFT - RIGHT) / len(points) / 2)
    areas = []
    for step, values in points:
        said = [f"{s.label} {chart.form(values[s.metric])}" for s in shown if s.metric in values]
        title = element("title", "\n".join([f"step {step}", *said]))
        line = element("line", x1=x(step), x2=x(step), y1=TOP, y2=HEIGHT - BOTTOM)
        area = element("rect", x=round(x(step) - half, 1), y=TOP, width=round(2 * half, 1), height=HEIGHT - TOP - BOTTOM)
        areas.append(element("g", title, line, area))
    return element("g", *areas, class_="hover")
