import math
from fractions import Fraction

import pytest
from group_strategies import groups
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit, reward_space


def test_by_hand():
    assert reward_space({"a": 1, "b": 1, "c": 0, "d": 0}, {"a": 1.0, "b": 0.5}) == pytest.approx(
        {"a": 7 / 6, "b": 5 / 6, "c": 0, "d": 0}
    )


@given(groups(passing=st.just(1.0), hacked=False, invalid=False))
def test_its_advantages_are_those_of_the_uncapped_redistribution(drawn):
    members, factors, _ = drawn
    shaped = {id: Fraction(r) for id, r in reward_space({m.id: m.reward for m in members}, factors).items()}
    mean = sum(shaped.values()) / len(shaped)
    advantages = compute_credit(members, FactorVerdict(factors), CreditParams(cap=None)).advantages
    bound = Fraction(1, 10**12) * max(map(Fraction, map(abs, advantages.values())))
    assert all(abs(shaped[id] - mean - Fraction(a)) <= bound for id, a in advantages.items())


def test_a_group_without_a_pass_has_rewards_of_0():
    assert reward_space({"a": 0, "b": 0.0}, {}) == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    ("rewards", "factors", "message"),
    [
        ({"a": 0.5, "b": 0}, {"a": 1.0}, "trajectory 'a': reward must be 0 or 1"),
        ({"a": math.nan, "b": 0}, {"a": 1.0}, "trajectory 'a': reward must be a number"),
        ({"a": math.inf, "b": 0}, {"a": 1.0}, "trajectory 'a': reward must be a number"),
        ({"a": 1, "b": 0}, {}, "factors: "),
        ({"a": 1, "b": 0}, {"a": 1.0, "b": 1.0}, "factors: "),
        ({"a": 1, "b": 0}, {"a": 0.0}, "factors.a: "),
        ({"a": 1, "b": 0}, {"a": math.nan}, "factors.a: "),
        ({"a": 1, "b": 0}, {"a": 1.1}, "factors.a: "),
    ],
)
def test_bad_input_is_refused_by_name(rewards, factors, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        reward_space(rewards, factors)
