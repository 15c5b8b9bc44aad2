import json
from dataclasses import asdict, replace

import pytest
from exact import Length, Member, group
from group_strategies import PARAMS, groups
from hypothesis import given, settings

from gagar_mcore.credit import CreditParams, FactorVerdict, Step, compute_credit, explain
from gagar_mcore.records.types import Grade, Verdict

CLEAN = Grade(5, 5, 5, 5, 5)
GROUP = group(1, 1, 1, 1, 0)
GRADED = Verdict("test", {"t1": CLEAN, "t2": replace(CLEAN, approach=3), "t3": replace(CLEAN, rewrite=True)}, ["t4"])


@settings(max_examples=80)
@given(groups(), PARAMS)
def test_the_steps_of_every_trajectory_lead_to_its_advantage(drawn, params):
    members, factors, hacks = drawn
    verdict = FactorVerdict(factors, hacks)
    advantages = compute_credit(members, verdict, params).advantages
    for member in members:
        explanation = explain(members, verdict, params, member.id)
        assert explanation.advantage == advantages.get(member.id)
        assert explanation.sentence.endswith(".") and explanation.sentence.count("\n") == 0
        json.dumps(asdict(explanation), allow_nan=False)


def sentences(params, verdict=GRADED, members=GROUP, fallback=None):
    return {
        m.id: explain(members, verdict, params, m.id, fallback).sentence.removeprefix(f"Trajectory {m.id} has ") for m in members
    }


def test_redistribution_in_words():
    assert sentences(CreditParams()) == {
        "t1": "advantage +0.585366: reward 1 from the tests, minus the mean 0.6 of 5 valid trajectories, "
        "times discount factor 1 (tier 1) and lambda 1.46341.",
        "t2": "advantage +0.497561: reward 1 from the tests, minus the mean 0.6 of 5 valid trajectories, "
        "times discount factor 0.85 (tier 2) and lambda 1.46341.",
        "t3": "advantage +0.117073: reward 1 from the tests, minus the mean 0.6 of 5 valid trajectories, "
        "times discount factor 0.2 (tier 3) and lambda 1.46341.",
        "t4": "advantage -0.6: reward 1 from the tests, set to 0 as a confirmed hack, "
        "minus the mean 0.6 of 5 valid trajectories; not redistributed, as it fails.",
        "t5": "advantage -0.6: reward 0 from the tests, "
        "minus the mean 0.6 of 5 valid trajectories; not redistributed, as it fails.",
    }


def test_penalty_cap_and_correction_in_words():
    members = [replace(m, lengths=Length(20 if m.id == "t2" else 10, 1, 1)) for m in GROUP]
    found = sentences(CreditParams(cap=1.1, length_penalty=True, group_size_correction=True), members=members)
    assert found["t2"] == (
        "advantage +0.3592: reward 1 from the tests, minus a length penalty of 0.2, "
        "minus the mean 0.56 of 5 valid trajectories, "
        "times discount factor 0.85 (tier 2) and lambda 1.1 (capped, 1.53005 before), "
        "plus 0.06296 to re-centre the group, as the cap bit, times 5/4 for the group size."
    )


def test_what_stands_in_the_way_in_words():
    assert sentences(CreditParams("grpo"))["t1"].endswith("; method grpo redistributes nothing.")
    late = sentences(CreditParams(), None, GROUP, "late")
    assert late["t1"].endswith("; the outcome advantage stands, as no verdict was used (late).")
    below = explain(group(1, 1, 0.25, 0), FactorVerdict({"t1": 1.0, "t2": 0.5, "t3": 0.5}), CreditParams(), "t3")
    assert below.sentence.endswith("; not redistributed, as its reward is not above the mean.")


@pytest.mark.parametrize(
    ("members", "hacks", "words"),
    [
        (group(1, 1), [], "all 2 valid trajectories pass"),
        (group(0, 0, 0), [], "all 3 valid trajectories fail"),
        (group(1, 0), ["t1"], "every pass in it is a confirmed hack"),
        (group(1, 0, invalid=["t2"]), [], "too few of its trajectories are valid (1)"),
    ],
)
def test_a_dropped_group_in_words(members, hacks, words):
    factors = {m.id: 1.0 for m in members if m.reward and m.id not in hacks}
    explanation = explain(members, FactorVerdict(factors, hacks), CreditParams(), "t1")
    assert explanation.sentence == f"Trajectory t1 has no advantage: its group was dropped, {words}."
    assert explanation.advantage is None and explanation.steps[0].name == "reward"


def test_an_invalid_trajectory_in_words(make_trajectory):
    lost = make_trajectory(7, valid=False, invalid_reason="sandbox_lost")
    explanation = explain([*GROUP, lost], GRADED, CreditParams(), lost.id)
    assert explanation.sentence.endswith("no advantage: it is invalid (sandbox lost) and left its group before any statistic.")
    assert explanation.steps == ()
    assert explain([*GROUP, Member("x", 0.0, False)], GRADED, CreditParams(), "x").remark.startswith("it is invalid and")


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": 0.5},
        {"steps": (Step("reward", "is", 1.0, 1.0, ""), Step("mean", "minus", 0.6, 0.41, ""))},
        {"steps": (Step("reward", "is", 1.0, 0.9, ""),)},
        {"steps": ()},
    ],
)
def test_steps_that_do_not_add_up_are_refused(changes):
    explanation = explain(GROUP, GRADED, CreditParams(), "t1")
    with pytest.raises(ValueError, match=r"^t1: (step|the steps lead to)"):
        replace(explanation, **changes)


def test_an_id_of_another_group_is_refused():
    with pytest.raises(KeyError):
        explain(GROUP, GRADED, CreditParams(), "t9")
