"""The whole credit step against rational arithmetic."""

from dataclasses import replace
from fractions import Fraction

import pytest
from exact import Length, Member, close, exact_advantages, group
from group_strategies import PARAMS, groups
from hypothesis import given, settings

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit

SHAPED = CreditParams(length_penalty=True, group_size_correction=True)
NEAR_THE_MEAN = ([Member("a", 1.0), Member("b", 0.5 + 2**-53), Member("c", 0.5 + 2**-52), Member("d", 0.0)], [1e-300, 1.0, 0.5])


@settings(max_examples=120)
@given(groups(), PARAMS)
def test_advantages_agree_with_rational_arithmetic(drawn, params):
    members, factors, hacks = drawn
    credit = compute_credit(members, FactorVerdict(factors, hacks), params)
    expected = exact_advantages(members, factors, hacks, params)
    assert credit.kept is bool(expected)
    assert close(credit.advantages, expected)


@settings(max_examples=40)
@given(groups(hacked=False), PARAMS)
def test_without_a_verdict_penalty_and_correction_still_apply(drawn, params):
    members, _, _ = drawn
    assert close(compute_credit(members, None, params, "late").advantages, exact_advantages(members, None, [], params))


def test_gains_that_nearly_cancel_lose_no_digits():
    members, factors = NEAR_THE_MEAN
    factors = {m.id: f for m, f in zip(members, factors, strict=False)}
    params = CreditParams(cap=None)
    credit = compute_credit(members, FactorVerdict(factors), params)
    assert close(credit.advantages, exact_advantages(members, factors, [], params), Fraction(1, 2**52))


@pytest.mark.parametrize("params", [CreditParams(), replace(SHAPED, cap=None)])
@pytest.mark.parametrize(("size", "scale"), [(2, 1.0), (2, 1e-300), (2, 5e-324), (3, 5e-324), (4096, 1.0), (4096, 1e-300)])
def test_groups_of_any_size_with_extreme_rewards_and_factors(size, scale, params):
    extremes = [1.0, 5e-324, 1e-300, 1e-18]
    members = [Member(f"t{i}", scale if i % 2 else 0.0, True, Length(1 + i % 7, 1.5 ** (i % 50), 5)) for i in range(1, size + 1)]
    factors = {m.id: extremes[i % 4] for i, m in enumerate(members) if m.reward}
    credit = compute_credit(members, FactorVerdict(factors), params)
    assert credit.fallback is None
    assert close(credit.advantages, exact_advantages(members, factors, [], params))


def test_keep_or_drop_is_decided_before_any_penalty():
    all_pass = [replace(m, lengths=Length(i, 1, 1)) for i, m in enumerate(group(1, 1, 1), start=1)]
    assert compute_credit(all_pass, None, SHAPED).dropped == "all_pass"
    ruined = [replace(m, lengths=Length(10 * m.reward, 1, 1)) for m in group(0.1, 0.1, 0)]
    credit = compute_credit(ruined, None, replace(SHAPED, length_percentile=0, length_weight=1.0))
    assert credit.kept


def test_order_of_operations_by_hand():
    """Hack zeroed, then penalty, mean, redistribution, correction, each on what the one before left."""
    lengths = {"t1": 10, "t2": 12, "t3": 30, "t4": 99, "t5": 1, "t6": 1}
    members = [replace(m, lengths=Length(lengths[m.id], 1, 1)) for m in group(1, 1, 1, 1, 0, 0)]
    params = CreditParams(cap=None, length_penalty=True, length_pass_rate=0.4, length_percentile=0, group_size_correction=True)
    credit = compute_credit(members, FactorVerdict({"t1": 1.0, "t2": 0.5, "t3": 0.25}, ["t4"]), params)
    assert credit.penalties == pytest.approx({"t2": 0.08, "t3": 0.2})
    mean = (1 + 0.92 + 0.8) / 6
    gains = [1 - mean, 0.92 - mean, 0.8 - mean]
    lam = sum(gains) / (gains[0] + 0.5 * gains[1] + 0.25 * gains[2])
    assert credit.lam == pytest.approx(lam)
    expected = [lam * gains[0], lam * 0.5 * gains[1], lam * 0.25 * gains[2], -mean, -mean, -mean]
    assert list(credit.advantages.values()) == pytest.approx([1.2 * a for a in expected])
