"""The redistribution against the reported values, and its laws for any input."""

from dataclasses import replace
from fractions import Fraction

import pytest
from exact import close, exact_advantages, group
from group_strategies import FACTOR, PARAMS, groups
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit

GOLDEN = [
    ([1, 0.85, 0.4], 1.08333, False),
    ([1, 0.85, 0.625, 0.4], 1.04348, False),
    ([1, 0.85, 0.4, 0.2], 1.14023, True),
    ([1, 1, 0.2], 1.10795, False),
    ([1, 0.2], 1.32344, True),
    ([1, 0.2, 0.2], 1.26445, True),
    ([1, 0.85, 0.4, 0.4], 1.12617, True),
]
UNCAPPED = CreditParams(cap=None)
OUTCOME = CreditParams("grpo")
ROUNDING = Fraction(1, 10**12)


def credited(drawn, params=UNCAPPED):
    members, factors, hacks = drawn
    return compute_credit(members, FactorVerdict(factors, hacks), params)


def total(advantages, ids):
    return sum((Fraction(advantages[id]) for id in ids), Fraction())


def largest(advantages):
    return (
        max((Fraction(abs(a)) for a in advantages.values()), default=Fraction()) + len(advantages) * Fraction(5e-324) / ROUNDING
    )


@pytest.mark.parametrize(("factors", "most", "capped"), GOLDEN)
def test_reported_largest_advantage_of_a_group_of_16(factors, most, capped):
    members = group(*[1] * len(factors), *[0] * (16 - len(factors)))
    credit = credited((members, {f"t{i}": f for i, f in enumerate(factors, start=1)}, []), CreditParams())
    assert max(credit.advantages.values()) == pytest.approx(most, abs=5e-6)
    assert credit.capped is capped
    assert (credit.lam == 1.5) is capped


@given(groups())
def test_total_of_the_passing_is_unchanged(drawn):
    moved, outcome = credited(drawn).advantages, credited(drawn, OUTCOME).advantages
    ids = drawn[1].keys() & moved.keys()
    assert abs(total(moved, ids) - total(outcome, ids)) <= ROUNDING * largest(outcome)


@example((group(5e-324, 5e-324, 0, 0, 0), {"t1": 5e-324, "t2": 5e-324}, []), None)
@given(groups(), st.none() | st.floats(1, 50))
def test_a_group_sums_to_zero_capped_or_not(drawn, cap):
    moved = credited(drawn, CreditParams(cap=cap)).advantages
    assert abs(total(moved, moved)) <= ROUNDING * largest(moved)


@given(groups(passing=st.just(1.0)))
def test_order_and_ratios_of_the_factors_are_kept(drawn):
    moved, factors = credited(drawn).advantages, drawn[1]
    for a in factors.keys() & moved.keys():
        for b in factors.keys() & moved.keys():
            difference = Fraction(moved[a]) * Fraction(factors[b]) - Fraction(moved[b]) * Fraction(factors[a])
            assert abs(difference) <= ROUNDING * largest(moved) * Fraction(max(factors[a], factors[b]))
            assert factors[a] < factors[b] or moved[a] >= moved[b]


@given(groups())
def test_every_sign_is_kept(drawn):
    moved, outcome = credited(drawn).advantages, credited(drawn, OUTCOME).advantages
    assert all(moved[id] * a >= 0 for id, a in outcome.items())


@given(groups(), FACTOR)
def test_equal_factors_change_nothing(drawn, factor):
    members, factors, hacks = drawn
    equal = (members, dict.fromkeys(factors, factor), hacks)
    assert credited(equal).advantages == credited(equal, OUTCOME).advantages


@given(groups(max_passing=1, hacked=False))
def test_one_passing_trajectory_keeps_its_advantage(drawn):
    assert credited(drawn).advantages == credited(drawn, OUTCOME).advantages


@given(groups())
def test_a_failing_trajectory_keeps_its_advantage(drawn):
    moved, outcome = credited(drawn).advantages, credited(drawn, OUTCOME).advantages
    assert all(moved[id] == a for id, a in outcome.items() if id not in drawn[1])


@settings(max_examples=60)
@given(groups(), PARAMS, st.data())
def test_the_order_of_the_members_changes_nothing(drawn, params, data):
    members, factors, hacks = drawn
    shuffled = data.draw(st.permutations(members))
    assert credited(drawn, params) == credited((shuffled, factors, hacks), params)


@settings(max_examples=60)
@given(groups(), PARAMS)
def test_invalid_members_change_nothing(drawn, params):
    members, factors, hacks = drawn
    assert credited(drawn, params) == credited(([m for m in members if m.valid], factors, hacks), params)


@given(groups(), st.floats(1, 3))
def test_the_cap_bounds_lambda(drawn, cap):
    free, bounded = credited(drawn), credited(drawn, CreditParams(cap=cap))
    assert bounded.lam == min(free.lam, cap)
    assert bounded.capped or bounded.advantages == free.advantages


@pytest.mark.parametrize("failing", range(1, 30))
def test_a_lambda_exactly_at_the_cap_does_not_bite(failing):
    credit = credited((group(1, 1, 1, *[0] * failing), {"t1": 1.0, "t2": 0.5, "t3": 0.5}, []), CreditParams())
    assert (credit.lam, credit.capped) == (1.5, False)


def test_a_passing_trajectory_below_the_mean_is_not_redistributed():
    members, factors = group(1, 1, 0.25, 0), {"t1": 1.0, "t2": 0.5, "t3": 0.5}
    credit = credited((members, factors, []))
    assert credit.advantages["t3"] == 0.25 - 2.25 / 4
    assert close(credit.advantages, exact_advantages(members, factors, [], UNCAPPED))


def test_downweighting_loses_advantage():
    credit = credited((group(1, 1, 0, 0), {"t1": 1.0, "t2": 0.5}, []), replace(UNCAPPED, method="downweight_only"))
    assert credit.advantages == {"t1": 0.5, "t2": 0.25, "t3": -0.5, "t4": -0.5}
