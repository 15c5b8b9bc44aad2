"""What counts as a number here: NaN and infinities never do, and neither does a boolean."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from numbers import Real
from typing import Any

Rule = tuple[str, Callable[[Any], bool], str]  # names of fields, what fits, and the same in words


def finite(value: Any) -> bool:
    """Whether `value` is a real number, numpy's among them, that a double can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def exact(value: Any) -> Fraction:
    """A `finite` number as the double that holds it, without further rounding; `Fraction` alone takes few of numpy's types."""
    return Fraction(float(value))


def boolean(value: Any) -> bool:
    """Whether `value` is true or false, numpy's own included, which is told by its type so that numpy need not be there."""
    return isinstance(value, bool) or (getattr(value, "dtype", None), getattr(value, "shape", None)) == ("bool", ())


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def within(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: finite(value) and low <= value <= high


def discount(value: Any) -> bool:
    return within(0, 1)(value) and float(value) > 0


def check_fields(record: object, rules: Iterable[Rule]) -> None:
    """Raises ValueError naming the first field of `record` that breaks its rule."""
    for names, fits, words in rules:
        for name in names.split():
            value = getattr(record, name)
            if not fits(value):
                raise ValueError(f"{name}: {words}, got {value!r}")
