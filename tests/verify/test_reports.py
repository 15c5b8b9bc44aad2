"""Reports of other forms than CTRF, and what is believed of any."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.integrity import suspect
from gagar_mcore.verify.junit import parse_junit
from gagar_mcore.verify.logs import parse_log
from gagar_mcore.verify.report import Report, ReportError, parse_ctrf
from gagar_mcore.verify.reward import parse_reward_json, parse_reward_text

CASES = """<testcase classname="tests.a" name="one[x]" time="0.25"/>
<testcase classname="tests.a" name="two" time="1,000.5"><failure message="no">trace</failure></testcase>
<testcase classname="tests.a" name="three"><skipped/></testcase><testcase name="four"><error/></testcase>"""
JUNIT = f'<?xml version="1.0"?><testsuites><testsuite name="s" tests="4">{CASES}</testsuite></testsuites>'


def test_junit_is_read_by_class_and_name() -> None:
    report = parse_junit(JUNIT.encode())
    assert report.tests == {"tests.a.one[x]": "passed", "tests.a.two": "failed", "tests.a.three": "failed", "four": "error"}
    assert report.seconds["tests.a.two"] == 1000.5 and report.contradictions == ()
    assert parse_junit(JUNIT.encode(), "suite.name").tests["s.four"] == "error"
    assert "one[x]" in parse_junit(JUNIT.encode(), "name").tests


@pytest.mark.parametrize("said", ['status="notrun"', 'result="skipped"', 'status="Failed"'])
def test_a_test_that_was_not_run_has_not_passed(said: str) -> None:
    run = b'<testsuite><testcase name="a" status="run" result="completed"/></testsuite>'
    assert parse_junit(run).tests == {"a": "passed"}
    assert parse_junit(run.replace(b'status="run" result="completed"', said.encode())).tests == {"a": "failed"}


def test_of_a_test_that_is_reported_twice_the_worst_counts() -> None:
    twice = JUNIT.replace('name="two"', 'name="one[x]"')
    assert parse_junit(twice.encode()).tests["tests.a.one[x]"] == "failed"
    ctrf = b'{"results": {"tests": [{"name": "a", "status": "failed"}, {"name": "a", "status": "passed"}]}}'
    assert parse_ctrf(ctrf).tests == {"a": "failed"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<testsuite",
        b"<html/>",
        b'<?xml version="1.0" encoding="nonsense"?><testsuites/>',
        b'<!DOCTYPE a [<!ENTITY x "y">]><testsuites/>',
        b"<testsuite><testcase/></testsuite>",
        b'<testsuite><testcase name="a" time="soon"/></testsuite>',
        b'<testsuite><testcase name="a" time="inf"/></testsuite>',
    ],
)
def test_what_is_no_junit_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        parse_junit(data)


def test_ids_of_ctrf_can_have_their_suite() -> None:
    data = b'{"results": {"tests": [{"name": "TestA", "suite": "x.org/p", "status": "passed"}]}}'
    assert list(parse_ctrf(data, "suite.name").tests) == ["x.org/p.TestA"]


@pytest.mark.parametrize(
    ("data", "reward"), [(b"1", 1.0), (b'{"reward": 0.5, "style": 0}', 0.5), (b'{"a": 1, "b": 0.25}', 0.25), (b"0", 0.0)]
)
def test_rewards_are_numbers(data: bytes, reward: float) -> None:
    assert parse_reward_json(data) == reward


@pytest.mark.parametrize("data", [b"", b"{}", b"true", b'{"reward": "1"}', b"NaN", b"1e999", b"[" * 100_000])
def test_other_rewards_are_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        parse_reward_json(data)
    with pytest.raises(ReportError):
        parse_reward_text(b"nan")


PASSED = Report({"a": "passed", "b": "passed"}, {"a": 1.0, "b": 2.0})
USUAL = {"a": 1.0, "b": 2.0}


def task(inventory: dict[str, float], *unsteady: str) -> Task:
    return Task("t", Path(), "", Path(), Path(), ("a",), ("b",), inventory=inventory, unsteady=unsteady)


def test_an_honest_report_is_not_suspected() -> None:
    assert not suspect(PASSED, task(USUAL), 0, 3.5)
    assert not suspect(PASSED, task({}), 0, 3.5)
    now = Report({**PASSED.tests, "c[16:42]": "passed"}, PASSED.seconds)
    assert suspect(now, task(USUAL), 0, 3.5) and not suspect(now, task(USUAL, "c"), 0, 3.5)


@pytest.mark.parametrize(
    ("report", "exit_code", "wall_s", "proof", "doubt"),
    [
        (PASSED, 1, 3.5, "", "exit code is 1"),
        (Report(PASSED.tests, {"a": -1.0, "b": 4.0}), 0, 3.5, "less than no time", ""),
        (Report(PASSED.tests, {"a": 60.0}), 0, 3.5, "claim 60.0 s of a run that took 3.5 s", ""),
        (Report(PASSED.tests, {"a": 0.0}), 0, 3.5, "", "usually take 3.0 s"),
        (PASSED, 0, 0.1, "", "usually take 3.0 s"),
        (Report({"a": "passed"}, {"a": 3.0}), 0, 3.5, "", "not reported: b"),
        (Report({**PASSED.tests, "c": "passed"}, PASSED.seconds), 0, 3.5, "", "does not have: c"),
        (Report(PASSED.tests, PASSED.seconds, reward=0.0), 0, 3.5, "", "the reward file says 0"),
        (Report(PASSED.tests, PASSED.seconds, contradictions=("x",)), 0, 3.5, "x", ""),
        (Report(PASSED.tests, PASSED.seconds, evidence=("y",)), 0, 3.5, "y", ""),
    ],
)
def test_what_contradicts_itself_is_a_proof_and_what_is_odd_a_doubt(
    report: Report, exit_code: int, wall_s: float, proof: str, doubt: str
) -> None:
    suspicion = suspect(report, task(USUAL), exit_code, wall_s)
    assert len(suspicion.reasons) == 1, suspicion
    assert proof in "".join(suspicion.proofs) and doubt in "".join(suspicion.doubts)
    assert bool(suspicion.proofs) == bool(proof)


def test_what_honest_code_does_not_reach_for_is_a_proof() -> None:
    reaching = parse_ctrf(b'{"results": {"tests": [{"name": "a", "status": "passed"}], "extra": {"reached": ["sys.settrace"]}}}')
    assert suspect(reaching, task({}), 0, 1.0).proofs == ("code of the repository reaches for sys.settrace",)
    assert not suspect(reaching, replace(task({}), reached=("sys.settrace",)), 0, 1.0)


def test_summaries_that_count_otherwise_are_contradictions() -> None:
    ctrf = b'{"results": {"summary": {"tests": 5, "passed": 1}, "tests": [{"name": "a", "status": "passed"}]}}'
    assert parse_ctrf(ctrf).contradictions == ("the summary counts 5 tests, the list 1",)
    assert parse_junit(JUNIT.replace('tests="4"', 'tests="9"').encode()).contradictions == ("a suite counts 9 tests and lists 4",)


def test_a_log_is_read_between_the_marks_by_the_repositorys_parser() -> None:
    log = "PASSED x::y\n>>>>> Start Test Output\nPASSED a::b\nFAILED c::d - E\n>>>>> End Test Output\nPASSED c::d\n"
    assert asyncio.run(parse_log(log, "pallets/flask")).tests == {"a::b": "passed", "c::d": "failed"}
    with pytest.raises(ReportError, match="has no parser 'nobody/nothing'"):
        asyncio.run(parse_log(log, "nobody/nothing"))


def test_who_prints_first_or_last_in_a_log_of_pytest_decides_nothing() -> None:
    forged = asyncio.run(parse_log("FAILED a::b - E\nPASSED c::d\n1 failed\nPASSED a::b\n", "pallets/flask"))
    between = asyncio.run(parse_log("PASSED a::b\nFAILED a::b - E\nPASSED a::b\n", "pallets/flask"))
    assert between.tests == {"a::b": "failed"}
    assert forged.tests == {"a::b": "failed", "c::d": "passed"}


def test_a_mark_that_tests_print_hides_nothing() -> None:
    printed = ">>>>> Start Test Output\nPASSED a::b\n>>>>> End Test Output\nFAILED a::b - E\n>>>>> End Test Output\n"
    assert asyncio.run(parse_log(printed, "pallets/flask")).tests == {"a::b": "failed"}
    cut_short = asyncio.run(parse_log(">>>>> Start Test Output\nPASSED a::b\n", "pallets/flask"))
    assert cut_short.tests == {"a::b": "passed"}


@pytest.mark.parametrize(
    ("parser", "failed", "passed"),
    [
        ("django/django", "test_a (b.C) ... FAIL", "test_a (b.C) ... ok"),
        ("sympy/sympy", "test_a F", "test_a ok"),
        ("parse_log_gotest", "--- FAIL: TestA (0.00s)", "--- PASS: TestA (0.00s)"),
        ("parse_log_cargo", "test a::b ... FAILED", "test a::b ... ok"),
    ],
)
def test_nor_does_it_in_logs_of_other_runners(parser: str, failed: str, passed: str) -> None:
    assert set(asyncio.run(parse_log(f"{failed}\n{passed}\n", parser)).tests.values()) == {"failed"}
    assert set(asyncio.run(parse_log(f"{passed}\n", parser)).tests.values()) == {"passed"}


def test_a_log_that_takes_too_long_is_no_report() -> None:
    with pytest.raises(ReportError, match="could not be read in"):
        asyncio.run(parse_log("PASSED a::b", "pallets/flask", deadline_s=0.0))
