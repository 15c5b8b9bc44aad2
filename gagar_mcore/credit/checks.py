"""What counts as a number here: NaN and infinities never do, and neither does a boolean."""

import sys
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

Rule = tuple[str, Callable[[Any], bool], str]  # names of fields, what fits, and the same in words


def finite(value: Any) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def within(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: finite(value) and low <= value <= high


def check_fields(record: object, rules: Iterable[Rule]) -> None:
    """Raises ValueError naming the first field of `record` that breaks its rule."""
    for names, fits, words in rules:
        for name in names.split():
            value = getattr(record, name)
            if not fits(value):
                raise ValueError(f"{name}: {words}, got {value!r}")
