import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.credit import BehaviourParams, BehaviourScale, BehaviourSums, behaviour_scale, behaviour_sums

UNBOUNDED = BehaviourParams(low=1e-12, high=1e12)
ADVANTAGE = st.floats(-2, 2).filter(lambda a: abs(a) > 1e-3 or a == 0)
SEQUENCES = st.lists(
    st.tuples(ADVANTAGE, st.integers(1, 10**5), st.integers(0, 10**5)).map(lambda s: (s[0], s[1], min(s[1], s[2])))
)


def test_by_hand():
    sums = behaviour_sums([(0.5, 10, 2), (1.0, 5, 0), (-0.5, 8, 1), (-1.0, 4, 0), (0.0, 7, 7)])
    assert sums == BehaviourSums(positive=10.0, positive_clean=9.0, negative=-8.0, negative_flagged=-0.5, negative_clean=-7.5)
    assert behaviour_scale(*sums) == BehaviourScale(10 / 9, (-8.0 + 1.0) / -7.5, 0)


def test_numbers_of_numpy_are_summed_as_doubles():
    assert behaviour_sums([(np.float32(3e38), 10, np.int8(0))]).positive == float(np.float32(3e38)) * 10


def test_the_bounds_bite_and_are_counted():
    assert behaviour_scale(10, 1, -10, -1, -9) == BehaviourScale(2.0, 8 / 9, 1)
    assert behaviour_scale(10, 9, -10, -9, -1) == BehaviourScale(10 / 9, 0.5, 1)
    assert behaviour_scale(10, 1, -10, -9, -1) == BehaviourScale(2.0, 0.5, 2)
    assert behaviour_scale(10, 1, -10, -9, -1, BehaviourParams(kappa=0, low=0.1, high=20)) == BehaviourScale(10.0, 10.0, 0)


def test_a_denominator_of_0_leaves_its_scale_at_1():
    assert behaviour_scale(10, 0, -10, -10, 0) == BehaviourScale(1.0, 1.0, 0)
    assert behaviour_scale(*behaviour_sums([])) == BehaviourScale(1.0, 1.0, 0)
    assert behaviour_scale(*behaviour_sums([(0.5, 3, 3), (-0.5, 3, 3)])) == BehaviourScale(1.0, 1.0, 0)


@given(SEQUENCES, st.floats(0, 5))
def test_without_a_bound_the_totals_of_both_signs_are_kept(sequences, kappa):
    sums = behaviour_sums(sequences)
    alpha, beta, _ = behaviour_scale(*sums, BehaviourParams(kappa, UNBOUNDED.low, UNBOUNDED.high))
    gains = sum(Fraction(alpha) * Fraction(a) * (n - h) for a, n, h in sequences if a > 0)
    costs = sum((Fraction(beta) * (n - h) + Fraction(kappa) * h) * Fraction(a) for a, n, h in sequences if a < 0)
    if sums.positive_clean and UNBOUNDED.low < alpha < UNBOUNDED.high:
        assert float(gains) == pytest.approx(sums.positive, rel=1e-9)
    if sums.negative_clean and UNBOUNDED.low < beta < UNBOUNDED.high:
        assert float(costs) == pytest.approx(sums.negative, rel=1e-9)


@given(SEQUENCES)
def test_without_flags_nothing_is_scaled(sequences):
    assert behaviour_scale(*behaviour_sums([(a, n, 0) for a, n, _ in sequences])) == BehaviourScale(1.0, 1.0, 0)


@given(SEQUENCES, st.integers(0, 50))
def test_sums_of_parts_of_a_step_add_up(sequences, cut):
    parts = zip(behaviour_sums(sequences[:cut]), behaviour_sums(sequences[cut:]), strict=True)
    assert [a + b for a, b in parts] == pytest.approx(list(behaviour_sums(sequences)), rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float32("inf"), 10**400, True])
def test_a_sum_that_is_no_number_is_named(bad):
    for index, name in enumerate(BehaviourSums._fields):
        with pytest.raises(ValueError, match=f"^{name}: must be a finite number"):
            behaviour_scale(*[bad if i == index else 1.0 for i in range(5)])


@pytest.mark.parametrize(
    "sequence",
    [
        (math.nan, 1, 0),
        (math.inf, 1, 0),
        (np.float32("inf"), 3, 1),
        (10**400, 1, 0),
        (0.5, 1, 2),
        (0.5, -1, 0),
        (0.5, math.nan, 0),
        (0.5, np.float32("inf"), 0),
        (0.5, 3, -1),
    ],
)
def test_a_sequence_out_of_place_is_named(sequence):
    with pytest.raises(ValueError, match=r"^sequence 1: "):
        behaviour_sums([(0.5, 1, 0), sequence])


@pytest.mark.parametrize(
    ("field", "value"), [("kappa", -1), ("kappa", math.nan), ("low", 0), ("low", 3.0), ("high", math.inf), ("low", True)]
)
def test_a_constant_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}: "):
        BehaviourParams(**{field: value})
