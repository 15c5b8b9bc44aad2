import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.credit import Attempt, CreditParams, FactorVerdict, compute_credit
from gagar_mcore.records.types import Credit, Grade, Verdict

GAGAR = CreditParams()
CLEAN = Grade(5, 5, 5, 5, 5)


@dataclass(frozen=True)
class Member:
    id: str
    reward: float
    valid: bool = True


def group(*rewards, invalid=()):
    return [Member(f"t{i}", r, f"t{i}" not in invalid) for i, r in enumerate(rewards, start=1)]


def test_worked_example():
    verdict = FactorVerdict({"t1": 1.0, "t2": 0.85}, ["t3"])
    credit = compute_credit(group(1, 1, 1, 0), verdict, GAGAR)
    assert credit.lam == pytest.approx(1 / 0.925, rel=1e-15)
    assert credit.advantages == pytest.approx(
        {"t1": 0.5405405405405405, "t2": 0.4594594594594595, "t3": -0.5, "t4": -0.5}, rel=1e-15
    )
    assert (credit.kept, credit.dropped, credit.fallback, credit.capped) == (True, None, None, False)
    assert credit.factors == {"t1": 1.0, "t2": 0.85}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, Fraction])
def test_factors_may_be_of_any_real_type(kind):
    credit = compute_credit(group(1, 1, 0), FactorVerdict({"t1": kind(1), "t2": kind(0.5)}), GAGAR)
    assert credit == compute_credit(group(1, 1, 0), FactorVerdict({"t1": 1.0, "t2": 0.5}), GAGAR)
    assert {type(factor) for factor in credit.factors.values()} == {float}


def test_grades_become_tiers_and_factors():
    verdict = Verdict("test", {"t1": CLEAN, "t2": replace(CLEAN, rewrite=True)})
    credit = compute_credit(group(1, 1, 0, 0), verdict, CreditParams(cap=None))
    assert credit.tiers == {"t1": 1, "t2": 3}
    assert credit.lam == pytest.approx(2 / 1.2)
    assert credit.advantages == pytest.approx({"t1": 5 / 6, "t2": 1 / 6, "t3": -0.5, "t4": -0.5})


def test_the_method_decides_what_a_verdict_does_to_the_advantages():
    verdict = FactorVerdict({"t1": 1.0, "t2": 0.5}, ["t3"])
    found = {
        m: compute_credit(group(1, 1, 1, 0), verdict, CreditParams(m, cap=None)) for m in ("grpo", "downweight_only", "gagar")
    }
    assert found["grpo"].advantages == {"t1": 0.5, "t2": 0.5, "t3": -0.5, "t4": -0.5}
    assert found["downweight_only"].advantages == {"t1": 0.5, "t2": 0.25, "t3": -0.5, "t4": -0.5}
    assert found["gagar"].advantages == pytest.approx({"t1": 2 / 3, "t2": 1 / 3, "t3": -0.5, "t4": -0.5})
    assert [c.method for c in found.values()] == list(found)


@pytest.mark.parametrize(
    ("outcomes", "hacks", "dropped"),
    [
        (group(1, 1, 1), [], "all_pass"),
        (group(0, 0), [], "all_fail"),
        (group(1, 0, 0), ["t1"], "all_hacked"),
        (group(1, 1), ["t1", "t2"], "all_hacked"),
        (group(1, 0, invalid=["t2"]), [], "too_few_valid"),
        (group(1, 0, invalid=["t1", "t2"]), [], "too_few_valid"),
        ([], [], "too_few_valid"),
        (group(1, 1, 0, invalid=["t3"]), [], "all_pass"),
        (group(1, 0, 0, invalid=["t1"]), [], "all_fail"),
    ],
)
def test_a_group_without_contrast_is_dropped(outcomes, hacks, dropped):
    factors = {m.id: 1.0 for m in outcomes if m.valid and m.reward and m.id not in hacks}
    credit = compute_credit(outcomes, FactorVerdict(factors, hacks), GAGAR)
    assert credit == Credit("gagar", False, dropped, None, 1.0, False, {})


def test_min_valid_counts_valid_trajectories():
    outcomes = group(1, 0, 0, invalid=["t3"])
    assert compute_credit(outcomes, None, CreditParams(min_valid=3)).dropped == "too_few_valid"
    assert compute_credit(outcomes, None, CreditParams(min_valid=2)).kept


def test_a_confirmed_hack_can_make_an_all_pass_group_worth_keeping():
    credit = compute_credit(group(1, 1), FactorVerdict({"t1": 1.0}, ["t2"]), GAGAR)
    assert credit.kept and credit.advantages == {"t1": 0.5, "t2": -0.5}


def test_invalid_trajectories_touch_no_statistic():
    outcomes = [*group(1, 0), Member("lost", 0.0, valid=False), Member("broken", math.nan, valid=False)]
    assert compute_credit(outcomes, None, GAGAR).advantages == {"t1": 0.5, "t2": -0.5}


def test_zeroing_a_hack_changes_nothing_of_the_caller():
    outcomes, verdict = group(1, 1, 0), FactorVerdict({"t1": 1.0}, ["t2"])
    first = compute_credit(outcomes, verdict, GAGAR)
    assert outcomes == group(1, 1, 0)
    assert verdict == FactorVerdict({"t1": 1.0}, ["t2"])
    assert compute_credit(outcomes, verdict, GAGAR) == first


@pytest.mark.parametrize("method", ["gagar", "grpo", "downweight_only"])
@pytest.mark.parametrize(
    "verdict",
    [
        FactorVerdict({"t1": 0.5}),
        FactorVerdict({"t1": 0.5, "t2": 0.5, "t3": 1.0}),
        FactorVerdict({"t1": 0.5, "t2": 0.5}, ["t3"]),
        Verdict("test", {"t1": CLEAN, "t2": replace(CLEAN, rewrite="false")}),
    ],
)
def test_an_unusable_verdict_falls_back_to_the_outcome(method, verdict):
    credit = compute_credit(group(1, 1, 0), verdict, CreditParams(method))
    assert credit.fallback.startswith("invalid: ")
    assert credit.advantages == pytest.approx({"t1": 1 / 3, "t2": 1 / 3, "t3": -2 / 3})
    assert (credit.lam, credit.tiers, credit.factors) == (1.0, {}, {})


def test_the_hacks_of_an_unusable_verdict_are_not_believed():
    credit = compute_credit(group(1, 1, 1), FactorVerdict({"t1": 7.0, "t2": 1.0}, ["t3"]), GAGAR)
    assert credit.dropped == "all_pass" and credit.fallback.startswith("invalid: factors.t1")


def test_the_reason_of_a_missing_verdict_is_kept():
    assert compute_credit(group(1, 0), None, GAGAR, fallback="late").fallback == "late"
    assert compute_credit(group(1, 0), FactorVerdict({"t1": 1.0}), GAGAR, fallback="late").fallback == "late"
    assert compute_credit(group(1, 0), None, GAGAR).fallback == "no verdict"
    assert compute_credit(group(1, 0), None, CreditParams("grpo")).fallback is None
    assert compute_credit(group(1, 1), None, GAGAR).fallback is None


@pytest.mark.parametrize("reward", [math.nan, math.inf, -0.1, 1.1, 10**400, True, "1", None])
def test_a_reward_is_a_number_from_0_to_1(reward):
    with pytest.raises(ValueError, match="trajectory 't2': reward must be a number from 0 to 1"):
        compute_credit(group(1, reward), None, GAGAR)


@pytest.mark.parametrize("valid", ["false", None, 1, 0, "", np.array([True]), np.int64(1)])
def test_valid_is_a_boolean(valid):
    with pytest.raises(ValueError, match="trajectory 'a': valid must be true or false, got "):
        compute_credit([Attempt("b", 1.0), Attempt("a", 0.0, valid)], None, GAGAR)


def test_numpy_has_booleans_of_its_own():
    outcomes = [Attempt("a", 1.0, np.True_), Attempt("b", 0.0, np.bool_(1)), Attempt("c", 0.0, np.False_)]
    assert compute_credit(outcomes, None, GAGAR).advantages == {"a": 0.5, "b": -0.5}


def test_a_member_that_is_no_outcome_is_named_with_the_mend():
    with pytest.raises(ValueError, match=r"^outcomes\[1\]: a dict has no attribute id; give gagar_mcore\.credit\.Attempt\("):
        compute_credit([Attempt("a", 1.0), {"id": "b", "reward": 1.0, "valid": True}], None, GAGAR)


def test_an_id_given_twice_is_refused_even_where_invalid():
    with pytest.raises(ValueError, match="trajectory 'a': id given twice"):
        compute_credit([Member("a", 1), Member("a", 0, valid=False)], None, GAGAR)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=64), st.data())
def test_any_kept_group_sums_to_zero_under_gagar(rewards, data):
    outcomes = group(*rewards)
    passing = [m.id for m in outcomes if m.reward]
    hacks = data.draw(st.lists(st.sampled_from(passing), unique=True)) if passing else []
    factors = {id: data.draw(st.floats(1e-6, 1)) for id in passing if id not in hacks}
    credit = compute_credit(outcomes, FactorVerdict(factors, hacks), GAGAR)
    assert credit.fallback is None
    assert credit.kept is (0 < len(factors) < len(outcomes))
    assert abs(math.fsum(credit.advantages.values())) <= 1e-12
    assert set(credit.advantages) == ({m.id for m in outcomes} if credit.kept else set())
