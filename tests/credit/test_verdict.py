from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gagar_mcore.credit import CreditParams, FactorVerdict, VerdictError, check_verdict
from gagar_mcore.records.types import Grade, Verdict

PASSING = ["a", "b", "c"]
CLEAN = Grade(5, 5, 5, 5, 5)
MEDIUM = Grade(3, 5, 5, 5, 5)


def graded(*hacks, **grades):
    return Verdict("test", grades, list(hacks))


def check(verdict):
    check_verdict(verdict, PASSING, CreditParams())


def refused(verdict, message):
    with pytest.raises(VerdictError, match=message):
        check(verdict)


@pytest.mark.parametrize(
    "verdict",
    [
        graded(a=CLEAN, b=CLEAN, c=MEDIUM),
        graded("c", a=CLEAN, b=CLEAN),
        graded("c", a=CLEAN, b=CLEAN, c=MEDIUM),
        graded("a", "b", "c"),
        graded(a=replace(CLEAN, rank=1), b=replace(CLEAN, rank=1), c=replace(CLEAN, rank=3)),
        graded(a=CLEAN, b=replace(MEDIUM, rank=2), c=replace(MEDIUM, rank=1)),
        FactorVerdict({"a": 1, "b": 5e-324, "c": 0.2}),
        FactorVerdict({"a": 1.0}, ["b", "c"]),
        FactorVerdict({"a": np.float32(0.5), "b": np.int64(1), "c": Fraction(1, 3)}),
    ],
)
def test_usable(verdict):
    check(verdict)


@pytest.mark.parametrize("value", [0, 6, -1, 3.0, True, "3", None, 10**30])
@pytest.mark.parametrize("criterion", ["approach", "precision", "minimality", "side_effects", "consistency"])
def test_a_criterion_is_an_integer_from_1_to_5(criterion, value):
    refused(graded(a=CLEAN, b=CLEAN, c=replace(CLEAN, **{criterion: value})), rf"^grades\.c\.{criterion}: .* from 1 to 5")


@pytest.mark.parametrize("value", ["false", "true", 0, 1, None])
@pytest.mark.parametrize("flag", ["rewrite", "workaround", "severe_process", "regression"])
def test_a_flag_is_a_boolean(flag, value):
    refused(graded(a=CLEAN, b=CLEAN, c=replace(CLEAN, **{flag: value})), rf"^grades\.c\.{flag}: must be true or false")


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", 4, 10**30])
def test_a_rank_is_a_positive_integer_within_the_graded(value):
    grades = {id: replace(CLEAN, rank=1) for id in "ab"} | {"c": replace(CLEAN, rank=value)}
    refused(Verdict("test", grades), r"^grades\.c\.rank: ")


def test_ranks_of_a_tier_are_all_there_or_none():
    refused(graded(a=CLEAN, b=replace(CLEAN, rank=1), c=replace(CLEAN, rank=2)), "within a tier")


@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -0.1,
        1.0000001,
        float("nan"),
        float("inf"),
        True,
        np.True_,
        np.float32(0),
        np.float32("nan"),
        Fraction(1, 10**400),
        10**400,
        "0.5",
        None,
    ],
)
def test_a_factor_lies_above_0_and_up_to_1(value):
    refused(FactorVerdict({"a": 1.0, "b": 1.0, "c": value}), r"^factors\.c: must be a number in \(0, 1\]")


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (graded(a=CLEAN, b=CLEAN), "^grades: passing trajectory 'c' is missing"),
        (graded(a=CLEAN, b=CLEAN, c=CLEAN, failing=CLEAN), "^grades: 'failing' is not a passing"),
        (FactorVerdict({"a": 1.0, "b": 1.0}), "^factors: passing trajectory 'c' is missing"),
        (FactorVerdict({"a": 1.0, "b": 1.0, "c": 1.0, "x": 1.0}), "^factors: 'x' is not a passing"),
        (graded("x", a=CLEAN, b=CLEAN, c=CLEAN), "^hacks: 'x' is not a passing"),
        (graded("a", "a", b=CLEAN, c=CLEAN), "^hacks: an id is given twice"),
        (Verdict("test", dict.fromkeys(PASSING, CLEAN), "abc"), "^hacks: must be a list"),
        (Verdict("test", dict.fromkeys(PASSING, CLEAN), [1]), "^hacks: must be a list of ids"),
        (Verdict("test", [CLEAN]), "^grades: must be a mapping"),
        (graded(a=CLEAN, b=CLEAN, c={"approach": 5}), r"^grades\.c: must be a grade"),
        (graded("c", a=CLEAN, b=CLEAN, c=replace(CLEAN, approach=9)), r"^grades\.c\.approach"),
    ],
)
def test_refused(verdict, message):
    refused(verdict, message)
