from dataclasses import replace

import pytest

from gagar_mcore.credit import CreditParams
from gagar_mcore.credit.tiers import discount_factors, rank_score, tier
from gagar_mcore.records.types import Grade

PARAMS = CreditParams()
CLEAN = Grade(5, 5, 5, 5, 5)
MEDIUM = Grade(3, 5, 5, 5, 5)


def factors(**grades):
    return discount_factors(grades, PARAMS)[1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),
        (dict(approach=4, precision=4, minimality=4, side_effects=4, consistency=4), 1),
        ({"approach": 3}, 2),
        ({"precision": 3}, 2),
        ({"minimality": 1}, 2),
        ({"side_effects": 1}, 2),
        ({"consistency": 3}, 2),
        ({"severe_process": True}, 2),
        ({"regression": True}, 2),
        ({"approach": 2}, 2),
        ({"approach": 1}, 3),
        ({"minimality": 2, "side_effects": 2}, 3),
        ({"minimality": 2, "side_effects": 3}, 2),
        ({"minimality": 3, "side_effects": 2}, 2),
        ({"rewrite": True}, 3),
        ({"workaround": True}, 3),
        ({"workaround": True, "severe_process": True}, 3),
    ],
)
def test_tier_of_a_grade(changes, expected):
    assert tier(replace(CLEAN, **changes), PARAMS) == expected


def test_rank_score_weighs_the_criteria():
    assert rank_score(Grade(5, 4, 3, 2, 1), PARAMS) == pytest.approx(1.5 + 1.0 + 0.6 + 0.3 + 0.1)


@pytest.mark.parametrize(
    ("one", "other", "factor"),
    [
        (Grade(5, 4, 4, 4, 4), Grade(4, 4, 5, 4, 5), 1.0),  # 4.3 either way
        (Grade(3, 3, 4, 5, 4), Grade(3, 3, 5, 3, 5), 0.85),  # 3.6 either way, and sums of doubles that differ
    ],
)
def test_scores_equal_on_paper_tie(one, other, factor):
    assert rank_score(one, PARAMS) == rank_score(other, PARAMS)
    assert factors(a=one, b=other) == {"a": factor, "b": factor}


def test_first_tier_top_ties_get_everything_and_the_others_nine_tenths():
    grades = dict(a=CLEAN, b=CLEAN, c=replace(CLEAN, consistency=4), d=Grade(4, 4, 4, 4, 4))
    assert factors(**grades) == {"a": 1.0, "b": 1.0, "c": 0.9, "d": 0.9}


def test_second_tier_runs_down_a_line_over_tied_groups():
    grades = dict(a=MEDIUM, b=replace(MEDIUM, precision=4), c=replace(MEDIUM, precision=4), d=replace(MEDIUM, precision=1))
    assert factors(**grades) == {"a": 0.85, "b": 0.625, "c": 0.625, "d": 0.4}


def test_a_single_tied_group_of_the_second_tier_is_at_the_top_of_the_line():
    assert factors(a=MEDIUM, b=MEDIUM) == {"a": 0.85, "b": 0.85}


def test_third_tier_is_flat():
    assert factors(a=replace(CLEAN, rewrite=True), b=Grade(1, 1, 1, 1, 1)) == {"a": 0.2, "b": 0.2}


def test_without_a_clean_pass_nobody_gets_the_full_factor():
    assert factors(a=MEDIUM, b=replace(CLEAN, rewrite=True)) == {"a": 0.85, "b": 0.2}


def test_rank_reorders_within_a_tier():
    grades = dict(a=replace(CLEAN, rank=2), b=replace(CLEAN, consistency=4, rank=1), c=replace(CLEAN, rank=2))
    assert factors(**grades) == {"a": 0.9, "b": 1.0, "c": 0.9}


def test_tiers_order_before_ranks():
    tiers, found = discount_factors(dict(a=replace(CLEAN, rank=3), b=replace(MEDIUM, rank=1), c=replace(MEDIUM, rank=2)), PARAMS)
    assert tiers == {"a": 1, "b": 2, "c": 2}
    assert found == {"a": 1.0, "b": 0.85, "c": 0.4}


def test_the_constants_are_fields():
    params = CreditParams(t1_top=0.99, t1_other=0.8, t2_best=0.7, t2_worst=0.5, t3=0.1, t1_min=5)
    grades = dict(a=CLEAN, b=Grade(4, 5, 5, 5, 5), c=Grade(4, 4, 5, 5, 5), d=replace(CLEAN, rewrite=True))
    assert discount_factors(grades, params)[1] == {"a": 0.99, "b": 0.7, "c": 0.5, "d": 0.1}
