import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gagar_mcore.verify.report import ReportError, parse_ctrf


def report(*tests: object) -> bytes:
    return json.dumps({"results": {"tool": {"name": "any"}, "tests": tests}}).encode()


def test_statuses_are_read_by_name() -> None:
    parsed = parse_ctrf(report(*({"name": s, "status": s} for s in ("passed", "failed", "skipped", "pending", "other"))))
    assert parsed.tests == {"passed": "passed", "failed": "failed", "skipped": "failed", "pending": "error", "other": "error"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff{}",
        b'{"results": {}}',
        report({"name": "a"}),
        report({"name": "a", "status": "PASSED"}),
        report({"name": "a", "status": True}),
        report({"name": 1, "status": "passed"}),
        report({"name": "", "status": "passed"}),
        b'{"results": {"tests": ' + b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        parse_ctrf(data)


def test_a_report_full_of_faults_is_given_up_at_the_first() -> None:
    with pytest.raises(ReportError) as refused:
        parse_ctrf(report(*[{"name": "a"}] * 1000))
    assert isinstance(refused.value.__cause__, ValidationError)
    assert refused.value.__cause__.error_count() == 1


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_no_input_gives_anything_but_a_report_error(data: bytes) -> None:
    with pytest.raises(ReportError):
        parse_ctrf(data)
