import math

import pytest
from example_runs import make_run

from gagar_mcore.viewer.headline import Rate, headline, margin, terminal_summary


def test_held_back_tasks_count_first():
    metrics = {
        0: {"eval/pass_rate": 0.5, "eval/clean_share": 0.4},
        1: {"rollout/pass_rate": 0.9},
        2: {"eval/pass_rate": 0.7, "eval/clean_share": 0.6},
    }
    where = "held-back tasks, steps 0 and 2"
    assert headline(metrics) == [Rate("Pass rate", 0.5, 0.7, where), Rate("Clean share", 0.4, 0.6, where)]


def test_the_clean_share_is_over_the_passing_sessions():
    rates = headline(
        {
            0: {"eval/pass_rate": 0.5, "eval/clean_share": 0.5},
            3: {"eval/pass_rate": 0.5, "eval/clean_share": 0.5, "eval/sessions": 200},
        }
    )
    assert rates[0].end_margin == margin(0.5, 200)
    assert rates[1].end_margin == margin(0.5, 100)


def test_with_one_evaluation_training_tasks_are_compared():
    metrics = {0: {"eval/pass_rate": 0.5}} | {s: {"rollout/pass_rate": s / 10} for s in range(1, 5)}
    assert headline(metrics) == [
        Rate("Pass rate", pytest.approx(0.15), pytest.approx(0.35), "training tasks, first and last 2 steps")
    ]


@pytest.mark.parametrize("metrics", [{}, {1: {"rollout/pass_rate": 0.5}}, {1: {"rollout/pass_rate": math.nan}, 2: {}}])
def test_too_little_to_compare_is_no_headline(metrics):
    assert headline(metrics) == []


def test_margin_of_50_in_100():
    assert margin(0.5, 100) == pytest.approx(0.0962, abs=5e-5)  # the Wilson interval is .4038 to .5962
    assert margin(1.0, 10) > 0
    assert margin(0.5, 0) is None


def test_terminal_summary(layout):
    make_run(layout, steps=5, groups=0)
    assert terminal_summary(layout.root).splitlines() == [
        "pass rate    0.590 -> 0.750 (+0.160) on held-back tasks, steps 0 and 5",
        "clean share  0.540 -> 0.840 (+0.300) on held-back tasks, steps 0 and 5",
        f"report       {layout.report}",
    ]
