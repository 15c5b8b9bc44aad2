"""The report of a test run: Common Test Report Format (CTRF), parsed strictly."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from gagar_mcore.records.types import TestStatus

REPORT = "/logs/verifier/report.json"
MAX_REPORT_BYTES = 8 << 20


class ReportError(ValueError):
    """Not a report; the message says why."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Test(_Strict):
    name: Annotated[str, Field(min_length=1, max_length=10_000)]
    status: Literal["passed", "failed", "skipped", "pending", "other"]


class _Results(_Strict):
    tests: Annotated[list[_Test], Field(max_length=200_000), FailFast()]


class _Report(_Strict):
    results: _Results


def parse_report(data: bytes) -> dict[str, TestStatus]:
    """Status by test id. Raises ReportError, also where an id occurs twice."""
    try:
        tests = _Report.model_validate_json(data).results.tests
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ReportError(f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg'].lower()}") from error
    statuses: dict[str, TestStatus] = {test.name: _status(test) for test in tests}
    if len(statuses) != len(tests):
        raise ReportError("a test is reported twice")
    return statuses


def _status(test: _Test) -> TestStatus:
    match test.status:
        case "passed":
            return "passed"
        case "failed" | "skipped":
            return "failed"
        case _:
            return "error"
