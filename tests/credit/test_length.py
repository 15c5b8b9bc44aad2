import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from exact import Length, Member, group
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit
from gagar_mcore.credit.length import percentile
from gagar_mcore.records.types import Trajectory

ON = CreditParams("grpo", length_penalty=True)


def long(*lengths, failing=1):
    """Passing members of these lengths in turns, and failing ones that are longer still."""
    members = [Member(f"p{i}", 1.0, True, Length(turns, 100, 10)) for i, turns in enumerate(lengths)]
    return [*members, *(Member(f"f{i}", 0.0, True, Length(9999, 9999, 9999)) for i in range(failing))]


def penalties(members, params=ON, hacks=()):
    return compute_credit(
        members, FactorVerdict({m.id: 1.0 for m in members if m.reward and m.id not in hacks}, list(hacks)), params
    ).penalties


def test_the_ramp_runs_from_the_percentile_to_gamma_times_it():
    found = penalties(long(10, 10, 10, 10, 11, 12.5, 15, 16, 1000))
    assert found == pytest.approx({"p4": 0.04, "p5": 0.1, "p6": 0.2, "p7": 0.2, "p8": 0.2})


def test_the_largest_of_the_three_lengths_counts():
    base = Length(10, 100, 1000)
    lengths = [base, base, base, replace(base, turns=11), replace(base, input_tokens=120), Length(11, 110, 1300)]
    members = [Member(f"p{i}", 1.0, True, of) for i, of in enumerate(lengths)] + [Member("f", 0.0, True, base)]
    assert penalties(members) == pytest.approx({"p3": 0.04, "p4": 0.08, "p5": 0.12})


def test_nothing_is_taken_unless_more_than_half_pass():
    assert penalties(long(10, 20, failing=2)) == {}
    assert penalties(long(10, 20, 20, failing=2))
    assert penalties(long(10, 20, failing=2), replace(ON, length_pass_rate=0.49))


def test_a_zeroed_hack_counts_as_failing():
    members = long(10, 20, 30, failing=1)
    assert penalties(members, replace(ON, length_pass_rate=0.7))
    assert penalties(members, replace(ON, length_pass_rate=0.7), hacks=["p2"]) == {}


def test_off_by_default_and_without_need_of_lengths():
    assert compute_credit(group(1, 1, 0), None, CreditParams("grpo")).penalties == {}


def test_a_percentile_of_0_takes_nothing_and_does_not_divide():
    assert (
        penalties(
            [replace(m, lengths=Length(i, 0, 0)) for i, m in enumerate(group(1, 1, 1, 0))], replace(ON, length_percentile=0)
        )
        == {}
    )


def test_every_constant_is_a_field():
    params = replace(ON, length_percentile=0, length_weight=0.5, length_gamma=3)
    assert penalties(long(10, 20, 50), params) == pytest.approx({"p1": 0.25, "p2": 0.5})


@pytest.mark.parametrize("measure", ["turns", "input_tokens", "output_tokens"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, np.float32("inf"), -1, True, "3", 10**400])
def test_a_length_that_is_missing_or_no_number_is_named(measure, value):
    members = [replace(m, lengths=replace(Length(1, 1, 1), **({measure: value} if m.id == "t2" else {}))) for m in group(1, 0)]
    with pytest.raises(ValueError, match=f"^trajectory 't2': {measure} "):
        compute_credit(members, None, ON)


def test_every_valid_trajectory_needs_its_lengths_whether_or_not_a_penalty_comes_of_it():
    members = [replace(group(1)[0], lengths=Length(1, 1, 1)), Member("t2", 0.0)]
    with pytest.raises(ValueError, match=r"^trajectory 't2': turns is missing; .* needs turns, input_tokens, output_tokens$"):
        compute_credit(members, None, ON)
    assert compute_credit(
        [*members[:1], Member("t3", 0.0, True, Length(1, 1, 1)), replace(members[1], valid=False)], None, ON
    ).kept


def test_a_trajectory_knows_its_lengths(make_trajectory):
    trajectory: Trajectory = make_trajectory(generated=3, context=4)
    assert (trajectory.lengths.turns, trajectory.lengths.input_tokens, trajectory.lengths.output_tokens) == (0, 4, 3)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.integers(0, 100))
def test_the_percentile_is_linear_between_order_statistics(values, percent):
    assert float(percentile(map(Fraction, values), percent)) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)
