"""The redistribution against the reported values, against exact rational arithmetic, and its laws for any input."""

import math
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.credit.outcome import outcome_advantages
from gagar_mcore.credit.redistribute import downweight, redistribute

GOLDEN = [
    ([1, 0.85, 0.4], 1.08333, False),
    ([1, 0.85, 0.625, 0.4], 1.04348, False),
    ([1, 0.85, 0.4, 0.2], 1.14023, True),
    ([1, 1, 0.2], 1.10795, False),
    ([1, 0.2], 1.32344, True),
    ([1, 0.2, 0.2], 1.26445, True),
    ([1, 0.85, 0.4, 0.4], 1.12617, True),
]

FACTOR = st.floats(0, 1, exclude_min=True) | st.sampled_from([5e-324, 1e-300, 1e-12, 1.0])
FACTORS = st.lists(FACTOR, min_size=1, max_size=40)
FAILING = st.integers(1, 40)
REWARD = st.floats(1e-3, 1)


def binary_group(factors, failing):
    """(advantages, factors by id) of a group whose first trajectories pass."""
    rewards = {f"p{i}": 1.0 for i in range(len(factors))} | {f"f{i}": 0.0 for i in range(failing)}
    return outcome_advantages(rewards), {f"p{i}": f for i, f in enumerate(factors)}


def exact(rewards, factors, cap):
    """A' in rational arithmetic, straight from the formulas."""
    rewards = {id: Fraction(r) for id, r in rewards.items()}
    mean = sum(rewards.values()) / len(rewards)
    result = {id: r - mean for id, r in rewards.items()}
    gains = {id: result[id] for id in factors if result[id] > 0}
    lam = sum(gains.values()) / sum(Fraction(factors[id]) * a for id, a in gains.items())
    bounded = lam if cap is None else min(lam, Fraction(cap))
    result |= {id: bounded * Fraction(factors[id]) * a for id, a in gains.items()}
    centre = sum(result.values()) / len(result) if bounded < lam else 0
    return bounded, {id: a - centre for id, a in result.items()}


@pytest.mark.parametrize(("factors", "largest", "capped"), GOLDEN)
def test_reported_largest_advantage_of_a_group_of_16(factors, largest, capped):
    advantages, lam, bites = redistribute(*binary_group(factors, 16 - len(factors)), cap=1.5)
    assert max(advantages.values()) == pytest.approx(largest, abs=5e-6)
    assert bites is capped
    assert (lam == 1.5) is capped


@given(FACTORS, FAILING, st.none() | st.floats(1, 50))
def test_binary_rewards_agree_with_rational_arithmetic(factors, failing, cap):
    outcome, by_id = binary_group(factors, failing)
    advantages, lam, _ = redistribute(outcome, by_id, cap)
    bounded, expected = exact({id: float(id in by_id) for id in outcome}, by_id, cap)
    assert all(abs(Fraction(advantages[id]) - expected[id]) <= Fraction(1, 10**12) for id in expected)
    if bounded <= Fraction(sys.float_info.max):
        assert lam == pytest.approx(float(bounded), rel=1e-12)
    else:
        assert lam == sys.float_info.max


@given(st.lists(st.tuples(REWARD, FACTOR), min_size=1, max_size=30), FAILING, st.none() | st.floats(1, 50))
def test_other_rewards_agree_with_rational_arithmetic(passing, failing, cap):
    rewards = {f"p{i}": r for i, (r, _) in enumerate(passing)} | {f"f{i}": 0.0 for i in range(failing)}
    factors = {f"p{i}": f for i, (_, f) in enumerate(passing)}
    outcome = outcome_advantages(rewards)
    advantages, _, _ = redistribute(outcome, factors, cap)
    # at the mean the sign of a rounded advantage is chance, and at the cap so is whether it bites: the value is continuous there
    if min(abs(a) for a in outcome.values()) > 1e-9:
        _, expected = exact(rewards, factors, cap)
        assert all(abs(Fraction(advantages[id]) - expected[id]) <= Fraction(1, 10**12) for id in expected)


@given(FACTORS, FAILING)
def test_laws_without_a_cap(factors, failing):
    outcome, by_id = binary_group(factors, failing)
    advantages, lam, capped = redistribute(outcome, by_id, cap=None)
    assert not capped and lam >= 1
    assert math.fsum(advantages[id] for id in by_id) == pytest.approx(math.fsum(outcome[id] for id in by_id), rel=1e-12)
    assert abs(math.fsum(advantages.values())) <= 1e-12
    assert all(advantages[id] == outcome[id] for id in outcome if id not in by_id)
    assert all(advantages[id] >= 0 for id in by_id)
    top = max(by_id, key=by_id.__getitem__)
    for id in by_id:
        ratio = Fraction(by_id[id]) / Fraction(by_id[top]) * Fraction(advantages[top])
        assert abs(Fraction(advantages[id]) - ratio) <= Fraction(1, 10**12)


@given(st.lists(st.tuples(REWARD, FACTOR), min_size=1, max_size=30), FAILING)
def test_total_of_the_passing_is_kept_for_any_reward(passing, failing):
    rewards = {f"p{i}": r for i, (r, _) in enumerate(passing)} | {f"f{i}": 0.0 for i in range(failing)}
    factors = {f"p{i}": f for i, (_, f) in enumerate(passing)}
    outcome = outcome_advantages(rewards)
    advantages, _, _ = redistribute(outcome, factors, cap=None)
    assert math.fsum(advantages[id] for id in factors) == pytest.approx(math.fsum(outcome[id] for id in factors), abs=1e-12)
    assert all(advantages[id] * outcome[id] >= 0 for id in outcome)


@given(FACTOR, st.integers(1, 40), FAILING)
def test_equal_factors_change_nothing(factor, passing, failing):
    outcome, by_id = binary_group([factor] * passing, failing)
    assert redistribute(outcome, by_id, cap=None)[0] == outcome


@given(FACTOR, FAILING)
def test_one_passing_trajectory_keeps_its_advantage(factor, failing):
    outcome, by_id = binary_group([factor], failing)
    assert redistribute(outcome, by_id, cap=None)[0] == outcome


@given(FACTORS, FAILING, st.floats(1, 3))
def test_a_capped_group_is_centred(factors, failing, cap):
    advantages, lam, capped = redistribute(*binary_group(factors, failing), cap)
    assert abs(math.fsum(advantages.values())) <= 1e-12
    assert lam <= cap and (lam == cap or not capped)


@given(FACTORS, FAILING)
def test_equals_the_form_in_reward_space(factors, failing):
    outcome, by_id = binary_group(factors, failing)
    advantages, _, _ = redistribute(outcome, by_id, cap=None)
    mean = Fraction(len(factors), len(outcome))
    mean_factor = sum(map(Fraction, factors)) / len(factors)
    for id, factor in by_id.items():
        shaped = mean + (1 - mean) * Fraction(factor) / mean_factor
        assert abs(Fraction(advantages[id]) - (shaped - mean)) <= Fraction(1, 10**12)


def test_a_group_of_4096_with_extreme_factors():
    factors = [5e-324, 1e-300, 1e-18, 1.0] * 512
    outcome, by_id = binary_group(factors, 2048)
    for cap in (None, 1.5):
        advantages, _, _ = redistribute(outcome, by_id, cap)
        _, expected = exact({id: float(id in by_id) for id in outcome}, by_id, cap)
        assert max(abs(Fraction(advantages[id]) - expected[id]) for id in expected) <= Fraction(1, 10**12)
        assert abs(math.fsum(advantages.values())) <= 1e-12


def test_a_lambda_exactly_at_the_cap_does_not_bite():
    for failing in range(1, 30):
        _, lam, capped = redistribute(*binary_group([1, 0.5, 0.5], failing), cap=1.5)
        assert (lam, capped) == (1.5, False)


def test_nothing_moves_without_a_positive_part():
    assert redistribute({"a": 0.0, "b": 0.0}, {"a": 0.5}, 1.5) == ({"a": 0.0, "b": 0.0}, 1.0, False)


def test_downweighting_loses_advantage():
    outcome, by_id = binary_group([1, 0.5], 2)
    assert downweight(outcome, by_id) == {"p0": 0.5, "p1": 0.25, "f0": -0.5, "f1": -0.5}
