import math
from random import Random

import pytest

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit
from gagar_mcore.integrations.row_credit import credit_rows
from gagar_mcore.integrations.rows import Row, read_notes, read_params
from gagar_mcore.records.types import Grade, Verdict

GRADE = dict(approach=5, precision=5, minimality=5, side_effects=5, consistency=5)
PARAMS = CreditParams()


def row(id, reward, group="g", **notes):
    return Row(group, id, reward, read_notes({f"gagar_{name}": value for name, value in notes.items()}, id))


MIXED = [row("a", 1.0, factor=1.0), row("b", 1.0, factor=0.5), row("c", 0.0), row("d", 0.0)]


def by_hand(rows, verdict, params=PARAMS, fallback=None):
    advantages = compute_credit(rows, verdict, params, fallback=fallback).advantages
    return [advantages.get(row.id, 0.0) for row in rows]


def test_factors_reach_the_credit_step():
    found = credit_rows(MIXED, PARAMS)
    assert found.advantages == by_hand(MIXED, FactorVerdict({"a": 1.0, "b": 0.5}))
    assert found.advantages[0] > found.advantages[1] > 0
    assert found.metrics() == {
        "gagar/groups": 1,
        "gagar/kept": 1,
        "gagar/capped": 0,
        "gagar/invalid_trajectories": 0,
        "gagar/lambda_mean": pytest.approx(1 / 0.75),
    }


def test_grades_reach_the_credit_step():
    rows = [row("a", 1.0, grade=GRADE), row("b", 1.0, grade=GRADE | {"rewrite": True}), row("c", 0.0)]
    verdict = Verdict("x", {"a": Grade(**GRADE), "b": Grade(**GRADE, rewrite=True)})
    found = credit_rows(rows, PARAMS)
    assert found.advantages == by_hand(rows, verdict)
    assert found.groups["g"].tiers == {"a": 1, "b": 3}


def test_advantages_follow_their_rows_through_a_shuffle():
    rows = [*MIXED, row("a", 1.0, group=7, factor=0.2), row("z", 1.0, group=7, factor=0.9), row("y", 0.0, group=7)]
    expected = dict(zip(((r.group, r.id) for r in rows), credit_rows(rows, PARAMS).advantages, strict=True))
    shuffled = Random(0).sample(rows, len(rows))
    assert shuffled != rows
    found = credit_rows(shuffled, PARAMS)
    assert found.advantages == [expected[r.group, r.id] for r in shuffled]


def test_an_invalid_trajectory_counts_for_nothing_whatever_its_row_says():
    rows = [*MIXED, row("e", 0.0, valid=False), row("f", math.nan, valid=False, factor=7)]
    found = credit_rows(rows, PARAMS)
    assert found.advantages == [*credit_rows(MIXED, PARAMS).advantages, 0.0, 0.0]
    assert found.metrics()["gagar/invalid_trajectories"] == 2


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        (dict(factor=1.5), "invalid: factors.b: "),
        (dict(factor="1"), "invalid: factors.b: "),
        (dict(factor=math.nan), "invalid: factors: passing trajectory 'b' is missing"),
        (dict(factor=0.5, hack="false"), "invalid: hack: must be true or false, got 'false' for 'b'"),
        (dict(factor=0.5, grade=GRADE), "invalid: give either factors or grades"),
        (dict(factor=0.5, fallback="late"), "late"),
    ],
)
def test_a_verdict_that_cannot_be_used_leaves_the_outcome_advantages(notes, reason):
    rows = [MIXED[0], row("b", 1.0, **notes), *MIXED[2:]]
    found = credit_rows(rows, PARAMS)
    assert found.advantages == [0.5, 0.5, -0.5, -0.5]
    assert found.groups["g"].fallback.startswith(reason)
    assert found.metrics()[f"gagar/fallback/{reason.partition(':')[0]}"] == 1


def test_rows_without_a_judgement_are_counted_as_no_verdict():
    found = credit_rows([row("a", 1.0), row("b", 0.0)], PARAMS)
    assert (found.advantages, found.groups["g"].fallback) == ([0.5, -0.5], "no verdict")


def test_what_is_said_of_a_row_that_does_not_pass_is_not_read():
    rows = [*MIXED[:2], row("c", 0.0, factor=9.0, hack="x"), row("d", 0.0, grade={})]
    assert credit_rows(rows, PARAMS).advantages == credit_rows(MIXED, PARAMS).advantages


def test_a_confirmed_hack_is_zeroed_and_needs_no_factor():
    rows = [MIXED[0], row("b", 1.0, hack=True), *MIXED[2:]]
    assert credit_rows(rows, PARAMS).advantages == [0.75, -0.25, -0.25, -0.25]
    only = [row("a", 1.0, hack=True), row("b", 0.0)]
    found = credit_rows(only, PARAMS)
    assert (found.advantages, found.groups["g"].dropped) == ([0.0, 0.0], "all_hacked")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row("a", 1.0, factor=1.0)], "too_few_valid"),
        ([row("a", 1.0), row("b", 0.0, valid=False)], "too_few_valid"),
        ([row("a", 1.0, factor=1.0), row("b", 1.0, factor=0.2)], "all_pass"),
        ([row("a", 0.0), row("b", 0.0)], "all_fail"),
    ],
)
def test_a_dropped_group_teaches_nothing_and_is_counted(rows, reason):
    found = credit_rows(rows, PARAMS)
    assert found.advantages == [0.0] * len(rows)
    assert (found.metrics()["gagar/kept"], found.metrics()[f"gagar/dropped/{reason}"]) == (0, 1)


def test_rewards_between_pass_and_fail():
    rows = [row("a", 1.0, factor=1.0), row("b", 0.4, factor=0.5), row("c", 0.9, factor=0.5), row("d", 0.0)]
    assert credit_rows(rows, PARAMS).advantages == by_hand(rows, FactorVerdict({"a": 1.0, "b": 0.5, "c": 0.5}))


def test_segments_are_one_trajectory():
    rows = [MIXED[0], MIXED[0], *MIXED[1:], MIXED[3]]
    a, b, c, d = credit_rows(MIXED, PARAMS).advantages
    assert credit_rows(rows, PARAMS).advantages == [a, a, b, c, d, d]
    with pytest.raises(ValueError, match=r"group 'g', trajectory 'a': its segments differ"):
        credit_rows([*rows, row("a", 0.5, factor=1.0)], PARAMS)


def test_a_reward_outside_its_range_names_the_group():
    with pytest.raises(ValueError, match=r"group 'g': trajectory 'b': reward must be a number from 0 to 1, got -1"):
        credit_rows([row("a", 1.0), row("b", -1.0)], PARAMS)


def test_options_and_lengths_reach_the_credit_step():
    params = read_params({"method": "downweight_only", "length_penalty": True, "weights": [0.2] * 5})
    lengths = dict(turns=1, input_tokens=10, output_tokens=10)
    rows = [
        row("a", 1.0, factor=1.0, lengths=lengths),
        row("b", 1.0, factor=0.5, lengths=lengths | {"turns": 2}),
        row("c", 0.0, lengths=lengths),
    ]
    found = credit_rows(rows, params)
    assert found.advantages == by_hand(rows, FactorVerdict({"a": 1.0, "b": 0.5}), params)
    assert found.groups["g"].penalties.keys() == {"b"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"capp": 2}, "gagar.capp: unknown field"), ({"cap": 0.5}, "gagar.cap: "), ({"weights": [1.0]}, "gagar.weights: ")],
)
def test_settings_that_are_wrong_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        read_params(settings)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gagar_fctor": 1.0}, "row 3: gagar_fctor: unknown field; the fields are gagar_valid, "),
        ({"gagar_valid": "false"}, "row 3: gagar_valid: input should be a valid boolean"),
        ({"gagar_lengths": {"turns": 1.0}}, "row 3: gagar_lengths.input_tokens: required and missing"),
    ],
)
def test_fields_that_are_wrong_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        read_notes({"score": 1.0, **fields}, "row 3")


def test_the_log_line_warns_of_verdicts_that_were_not_used(caplog):
    caplog.set_level("INFO")
    credit_rows(MIXED, PARAMS).log()
    credit_rows([row("a", 1.0, group="u7"), row("b", 0.0, group="u7")], PARAMS).log()
    quiet, loud = caplog.records
    assert (quiet.levelname, loud.levelname) == ("INFO", "WARNING")
    assert quiet.getMessage() == "gagar: groups 1, kept 1, capped 0, invalid_trajectories 0, lambda_mean 1.333"
    assert loud.getMessage().endswith("fallback/no verdict 1; group 'u7': no verdict")
