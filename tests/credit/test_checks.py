"""What counts as a number, over every numeric type a caller may come with."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from exact import Length, Member, group

from gagar_mcore.credit import CreditParams, compute_credit
from gagar_mcore.credit.checks import discount, finite

FLOATS = (np.float16, np.float32, np.float64, np.longdouble)
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    "value", [0, -1, 0.5, 10**300, Fraction(1, 3), np.int64(3), np.uint8(1), *(kind(0.5) for kind in FLOATS)]
)
def test_real_numbers_that_a_double_holds(value):
    assert finite(value)


@pytest.mark.parametrize("value", [bad for kind in (float, *FLOATS) for bad in (kind("nan"), kind("inf"), kind("-inf"))])
def test_nan_and_infinities_of_any_type_are_no_numbers(value):
    assert not finite(value)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400), np.longdouble("1e4000")])
def test_what_no_double_holds_is_no_number(value):
    assert not finite(value)


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, Decimal(1), np.array(1.0)])
def test_other_types_are_no_numbers(value):
    assert not finite(value)


@pytest.mark.parametrize("value", [0, -0.1, 1.1, math.nan, np.float32(0), Fraction(1, 10**400)])
def test_a_discount_is_above_0_as_a_double_too(value):
    assert not discount(value)


@pytest.mark.parametrize("kind", [*FLOATS, np.int64, np.uint8, Fraction])
def test_rewards_lengths_and_constants_may_be_of_any_real_type(kind):
    length = Length(kind(3), kind(3), kind(3))
    members = [Member("a", kind(1), True, length), Member("b", kind(1), True, length), Member("c", kind(0), True, length)]
    params = CreditParams("gagar", cap=kind(2), length_penalty=True, length_weight=kind(1), length_gamma=kind(2), t3=kind(1))
    assert compute_credit(members, None, params).advantages == {"a": 1 / 3, "b": 1 / 3, "c": -2 / 3}


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_nan_and_infinities_are_refused_by_name(kind, bad):
    with pytest.raises(ValueError, match=r"^cap: must be a finite number"):
        CreditParams(cap=kind(bad))
    with pytest.raises(ValueError, match=r"^trajectory 't2': reward must be a number from 0 to 1"):
        compute_credit(group(1, kind(bad)), None, CreditParams())
