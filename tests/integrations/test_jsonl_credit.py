import io
import json

import pytest

from gagar_mcore.credit import CreditParams
from gagar_mcore.integrations.jsonl_credit import run_credit

GRADE = dict(approach=5, precision=5, minimality=5, side_effects=5, consistency=5)
CLEAN = dict.fromkeys(["t1", "t2", "t3"], GRADE)
OUTCOME = {"t1": 0.25, "t2": 0.25, "t3": 0.25, "t4": -0.75}


def trajectory(id, reward=1, valid=True):
    return {"id": id, "reward": reward, "valid": valid}


def line(verdict=None, **changes):
    trajectories = [trajectory("t1"), trajectory("t2"), trajectory("t3"), trajectory("t4", 0)]
    return json.dumps({"group_id": "g", "trajectories": trajectories, "verdict": verdict} | changes) + "\n"


def run(*lines, params=None):
    out, err = io.StringIO(), io.StringIO()
    code = run_credit(lines, out, err, params or CreditParams())
    return code, [json.loads(text) for text in out.getvalue().splitlines()], err.getvalue().splitlines()


def answer(text):
    code, [found], errors = run(text)
    assert (code, errors) == (0, [])
    return found


def test_worked_example_in_full_precision():
    assert answer(line({"factors": {"t1": 1.0, "t2": 0.85}, "hacks": ["t3"]})) == {
        "group_id": "g",
        "kept": True,
        "dropped": None,
        "fallback": None,
        "lambda": 1.0810810810810811,
        "capped": False,
        "advantages": {"t1": 0.5405405405405406, "t2": 0.45945945945945943, "t3": -0.5, "t4": -0.5},
    }


def test_grades_with_ranks_and_flags():
    flagged = GRADE | {"rank": None, "rewrite": True, "workaround": False, "severe_process": False, "regression": False}
    grades = {"t1": GRADE | {"rank": 2}, "t2": GRADE | {"rank": 1}, "t3": flagged}
    found = answer(line({"grades": grades}))
    assert found["advantages"]["t2"] == pytest.approx(0.25 * 3 / 2.1)
    assert found["advantages"]["t1"] == pytest.approx(0.25 * 3 / 2.1 * 0.9)
    assert found["advantages"]["t3"] == pytest.approx(0.25 * 3 / 2.1 * 0.2)


def test_options_reach_the_credit_step():
    verdict = {"factors": {"t1": 1, "t2": 0.5, "t3": 0.5}}
    found = [
        run(line(verdict), params=CreditParams(**options))[1][0]
        for options in ({"cap": 1.1}, {"method": "grpo"}, {"min_valid": 5})
    ]
    assert (found[0]["lambda"], found[0]["capped"]) == (1.1, True)
    assert found[1]["advantages"] == OUTCOME
    assert found[2]["dropped"] == "too_few_valid"


LENGTHS = {"turns": 10, "input_tokens": 100.0, "output_tokens": 50}


def test_lengths_reach_the_length_penalty():
    members = [trajectory(i) | LENGTHS for i in ("t1", "t2", "t3")] + [trajectory("t4", 0) | LENGTHS]
    members[2] |= {"turns": 12.5}
    code, [found], errors = run(line(trajectories=members), params=CreditParams("grpo", length_penalty=True))
    assert (code, errors) == (0, [])
    assert found["advantages"] == pytest.approx({"t1": 0.275, "t2": 0.275, "t3": 0.175, "t4": -0.725})


@pytest.mark.parametrize("field", LENGTHS)
def test_a_length_that_the_penalty_misses_makes_a_bad_line(field):
    members = [trajectory("t1") | LENGTHS, trajectory("t2", 0) | LENGTHS, trajectory("t3", 0, valid=False)]
    del members[1][field]
    code, answers, errors = run(line(trajectories=members), params=CreditParams(length_penalty=True))
    assert (code, answers) == (2, [])
    assert errors == [f"line 1: trajectories[1].{field}: required and missing, the length penalty is on"]


def test_invalid_ids_are_absent_and_a_dropped_group_has_no_advantages():
    mixed = [trajectory("t1"), trajectory("t2", 0), trajectory("t3", 0, valid=False)]
    assert answer(line(trajectories=mixed))["advantages"] == {"t1": 0.5, "t2": -0.5}
    dropped = answer(line(trajectories=mixed[1:]))
    assert (dropped["kept"], dropped["dropped"], dropped["advantages"]) == (False, "too_few_valid", {})
    assert answer(line(trajectories=[]))["dropped"] == "too_few_valid"


def test_without_a_verdict_the_outcome_stands():
    for text in (line(None), json.dumps({k: v for k, v in json.loads(line()).items() if k != "verdict"})):
        found = answer(text)
        assert (found["advantages"], found["fallback"], found["lambda"]) == (OUTCOME, "no verdict", 1.0)


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        ("clean", "verdict"),
        ([], "verdict"),
        ({}, "give either factors or grades"),
        ({"factors": {}, "grades": {}}, "give either factors or grades"),
        ({"factors": {"t1": 1, "t2": 1}}, "factors: passing trajectory 't3'"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1, "t4": 1}}, "factors: 't4'"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1, "x": 1}}, "factors: 'x'"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 0}}, "factors.t3"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1.5}}, "factors.t3"),
        ({"factors": {"t1": 1, "t2": 1, "t3": True}}, "factors.t3"),
        ({"factors": {"t1": 1, "t2": 1, "t3": "1"}}, "factors.t3"),
        ({"factors": {"t1": 1, "t2": 1, "t3": float("nan")}}, "factors.t3"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 10**400}}, "factors.t3"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1}, "note": "x"}, "note"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1}, "hacks": "t3"}, "hacks"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1}, "hacks": ["t4"]}, "hacks: 't4'"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1}, "hacks": ["x"]}, "hacks: 'x'"),
        ({"factors": {"t1": 1, "t2": 1, "t3": 1}, "hacks": ["t3", "t3"]}, "hacks: an id is given twice"),
        ({"grades": CLEAN | {"t3": GRADE | {"approach": 4.0}}}, "grades.t3.approach"),
        ({"grades": CLEAN | {"t3": GRADE | {"approach": True}}}, "grades.t3.approach"),
        ({"grades": CLEAN | {"t3": GRADE | {"approach": 0}}}, "grades.t3.approach"),
        ({"grades": CLEAN | {"t3": GRADE | {"rewrite": "false"}}}, "grades.t3.rewrite"),
        ({"grades": CLEAN | {"t3": GRADE | {"rank": 0}}}, "grades.t3.rank"),
        ({"grades": CLEAN | {"t3": GRADE | {"rank": 1}}}, "grades.t3.rank"),
        ({"grades": CLEAN | {"t3": GRADE | {"comment": "fine"}}}, "grades.t3.comment"),
        ({"grades": CLEAN | {"t3": {}}}, "grades.t3.approach"),
        ({"grades": CLEAN | {"t3": None}}, "grades.t3"),
    ],
)
def test_an_unusable_verdict_is_a_fallback_and_no_bad_line(verdict, field):
    found = answer(line(verdict))
    assert found["fallback"].startswith(f"invalid: {field}")
    assert (found["kept"], found["advantages"], found["lambda"], found["capped"]) == (True, OUTCOME, 1.0, False)


def test_a_trajectory_graded_twice_makes_the_verdict_unusable():
    found = answer(line("V").replace('"V"', '{"factors": {"t1": 1, "t1": 0.2, "t2": 1, "t3": 1}}'))
    assert found["fallback"] == "invalid: factors.t1: input should be a valid number, got a key given twice"


def broken(**changes):
    """A line whose second trajectory is changed."""
    return line(trajectories=[trajectory("t1", 0), trajectory("t2") | changes])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("nonsense", "not valid JSON"),
        ("[]", "must be a JSON object, got a list"),
        ("3", "must be a JSON object, got 3"),
        ("[" * 100_000, "not valid JSON"),
        (broken(reward=1).replace('"reward": 1', f'"reward": {"1" * 5000}'), "not valid JSON"),
        ('{"group_id": "\udcff", "trajectories": []}', "not valid UTF-8"),
        ("{}", "group_id: required and missing (and 1 more)"),
        (line(group_id=7), "group_id: "),
        (line(group_id=""), "group_id: "),
        (line(group_id="\ud800"), "group_id: "),
        (line(trajectories=None), "trajectories: "),
        (line(trajectories={}), "trajectories: "),
        (line(trajectories=[3]), "trajectories[0]: "),
        (line(trajectory=[]), "trajectory: unknown field"),
        (broken(id="t1"), "trajectories: id 't1' is given twice"),
        (broken(id=2), "trajectories[1].id: "),
        (broken(id=""), "trajectories[1].id: "),
        (broken(reward="1"), "trajectories[1].reward: "),
        (broken(reward=None), "trajectories[1].reward: "),
        (broken(reward=True), "trajectories[1].reward: "),
        (broken(reward=float("nan")), "trajectories[1].reward: input should be a finite number, got NaN"),
        (broken(reward=float("-inf")), "trajectories[1].reward: "),
        (broken(reward=-1), "trajectories[1].reward: "),
        (broken(reward=1.5), "trajectories[1].reward: "),
        (broken(reward=10**400), "trajectories[1].reward: "),
        (broken(valid="true"), "trajectories[1].valid: "),
        (broken(valid=1), "trajectories[1].valid: "),
        (broken(length=9), "trajectories[1].length: unknown field"),
        (broken(turns=-1), "trajectories[1].turns: "),
        (broken(input_tokens=float("nan")), "trajectories[1].input_tokens: "),
        (broken(output_tokens=float("inf")), "trajectories[1].output_tokens: "),
        (broken(output_tokens=True), "trajectories[1].output_tokens: "),
        ('{"group_id": "g", "trajectories": [{"id": "t1", "reward": 1}]}', "trajectories[0].valid: required and missing"),
        (
            '{"group_id": "g", "group_id": "h", "trajectories": []}',
            "group_id: input should be a valid string, got a key given twice",
        ),
    ],
)
def test_a_bad_line_is_named_and_the_good_ones_are_answered(text, message):
    code, answers, errors = run(line(), text, line(group_id="h"))
    assert code == 2
    assert [a["group_id"] for a in answers] == ["g", "h"]
    assert len(errors) == 1 and errors[0].startswith(f"line 2: {message}") and errors[0].isascii()


def test_blank_lines_and_a_byte_order_mark_are_skipped():
    code, answers, errors = run("\ufeff" + line(), "\n", "  \r\n", line(), "")
    assert (code, len(answers), errors) == (0, 2, [])


def test_each_line_is_answered_before_the_next_is_read():
    out, err, lengths = io.StringIO(), io.StringIO(), []

    def lines():
        for text in (line(), "bad", line()):
            yield text
            lengths.append((out.getvalue().count("\n"), err.getvalue().count("\n")))

    assert run_credit(lines(), out, err, CreditParams()) == 2
    assert lengths == [(1, 0), (1, 1), (2, 1)]


def test_ids_of_any_script_come_back_as_they_were():
    found = answer(line(trajectories=[trajectory("é\u2028<"), trajectory("b", 0)]))
    assert found["advantages"] == {"é\u2028<": 0.5, "b": -0.5}
