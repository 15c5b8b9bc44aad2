import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.viewer.charts import BOTTOM, HEIGHT, LEFT, MAX_POINTS, RIGHT, TOP, WIDTH, Chart, Series, draw, thinned
from gagar_mcore.viewer.scale import linear, logarithmic, round_step, tick_format, whole

FINITE = st.floats(-1e9, 1e9, allow_subnormal=False)
LINE = Chart("Rate", (Series("training", "t", "a"), Series("held back", "e", "b", dots=True)), "{:.2f}".format)
BARS = Chart("Share", (Series("one", "x", "a"), Series("two", "y", "b")), "{:.1f}".format, stacked=True)


def parsed(chart, metrics):
    """The figure as a tree: it is well-formed XML too."""
    return ElementTree.fromstring(draw(chart, metrics))


@given(st.lists(FINITE, max_size=20))
def test_a_linear_scale_holds_all_values_and_has_few_ticks(values):
    scale = linear(values, 0.0, 100.0)
    slack = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - slack <= v <= scale.high + slack for v in values)
    assert 2 <= len(scale.ticks) <= 7


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_a_scale_of_steps_ends_at_its_ends_and_has_whole_ticks(steps):
    scale = whole(steps, 0.0, 100.0)
    assert scale(min(steps)) == 0.0
    assert len(set(steps)) == 1 or scale(max(steps)) == 100.0
    assert 1 <= len(scale.ticks) <= 6
    assert all(tick == round(tick) for tick in scale.ticks)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=20))
def test_a_logarithmic_scale_holds_all_values(values):
    scale = logarithmic(values, 0.0, 100.0)
    assert all(10**scale.low <= v * (1 + 1e-9) and v <= 10**scale.high * (1 + 1e-9) for v in values)
    assert 2 <= len(scale.ticks) <= 7


def test_a_logarithmic_scale_puts_zero_at_its_foot():
    assert logarithmic([0.0, 1e-3, 1e-5], 0.0, 100.0)(0.0) == 0.0


@pytest.mark.parametrize(("rough", "step"), [(0.7, 1.0), (1.0, 1.0), (1.1, 2.0), (2.3, 2.5), (0.026, 0.05), (700.0, 1000.0)])
def test_round_steps(rough, step):
    assert math.isclose(round_step(rough), step)


def test_ticks_are_written_at_their_own_resolution():
    assert [tick_format(linear([0.55, 0.75], 0, 1))(t) for t in (0.55, 0.8)] == ["0.55", "0.80"]
    assert tick_format(linear([0.0, 40000.0], 0, 1))(20000.0) == "20,000"
    assert [tick_format(logarithmic([1e-6, 1.0], 0, 1))(t) for t in (1e-6, 1e-3, 1.0)] == ["1e-6", "1e-3", "1"]


def test_a_line_goes_through_its_values():
    figure = parsed(LINE, {0: {"e": 0.0}, 1: {"t": 0.5}, 2: {"t": 1.0, "e": 1.0}})
    paths = [path.get("d") for path in figure.iter("path")]
    middle, right, bottom = (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT, HEIGHT - BOTTOM
    assert paths == [f"M{middle:g} {(bottom + TOP) / 2:g}L{right:g} {TOP:g}", f"M{LEFT:g} {bottom:g}L{right:g} {TOP:g}"]
    assert len(list(figure.iter("circle"))) == 2


def test_bars_stand_on_one_another():
    figure = parsed(BARS, {1: {"x": 1.0, "y": 3.0}})
    lower, upper = [r for r in figure.iter("rect") if r.get("class")]
    assert float(upper.get("y")) == TOP
    assert float(upper.get("y")) + float(upper.get("height")) == float(lower.get("y"))
    assert float(lower.get("y")) + float(lower.get("height")) == HEIGHT - BOTTOM
    assert math.isclose(float(upper.get("height")), 3 * float(lower.get("height")), rel_tol=0.01)


def test_each_step_tells_its_values():
    titles = [title.text for title in parsed(LINE, {3: {"t": 0.25, "e": 0.5}, 4: {"t": 0.75}}).iter("title")]
    assert titles == ["step 3\ntraining 0.25\nheld back 0.50", "step 4\ntraining 0.75"]


@pytest.mark.parametrize("metrics", [{}, {1: {}}, {1: {"t": math.nan}}, {1: {"other": 1.0}}])
def test_without_values_it_says_so(metrics):
    assert "no values yet" in draw(LINE, metrics)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-300, 1e300])
def test_a_single_value_can_be_drawn(value):
    assert len(list(parsed(LINE, {1: {"t": value}}).iter("circle"))) == 1
    parsed(BARS, {1: {"x": value}})


def test_long_runs_are_shown_as_means_of_equally_many_steps():
    metrics = {step: {"t": float(step % 2)} for step in range(1, 4 * MAX_POINTS + 1)}
    points = thinned(metrics, ["t"])
    assert len(points) == MAX_POINTS
    assert points[-1] == (4 * MAX_POINTS, {"t": 0.5})
