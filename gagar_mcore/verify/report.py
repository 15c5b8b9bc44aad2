"""What a test run reports: its form here, and the Common Test Report Format (CTRF), parsed strictly."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from gagar_mcore.records.types import TestStatus

MAX_REPORT_BYTES = 32 << 20

_WORST: tuple[TestStatus, ...] = ("missing", "passed", "failed", "error")


class ReportError(ValueError):
    """Not a report; the message says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """`seconds` and `messages`: of tests that have some. `contradictions`: between the parts of one report. `evidence`: what the
    runner itself saw being tampered with, `reached`: what it saw code of the repository reach for. `reward`: what the reward file
    says."""

    tests: dict[str, TestStatus] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    reward: float | None = None
    messages: dict[str, str] = field(default_factory=dict)


def joined(reports: Iterable[Report]) -> Report:
    """As one. Of a test that is reported twice the worst counts."""
    tests: dict[str, TestStatus] = {}
    seconds: dict[str, float] = {}
    contradictions: list[str] = []
    evidence: list[str] = []
    reached: list[str] = []
    messages: dict[str, str] = {}
    for report in reports:
        for name, status in report.tests.items():
            tests[name] = worse(tests.get(name, "missing"), status)
        for name, value in report.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
        contradictions += report.contradictions
        evidence += report.evidence
        reached += report.reached
        messages |= report.messages
    return Report(tests, seconds, tuple(contradictions), tuple(evidence), tuple(reached), messages=messages)


def worse(one: TestStatus, other: TestStatus) -> TestStatus:
    return max(one, other, key=_WORST.index)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Test(_Strict):
    name: Annotated[str, Field(min_length=1, max_length=10_000)]
    status: Literal["passed", "failed", "skipped", "pending", "other"]
    suite: str | list[str] = ""
    duration: Annotated[float, Field(allow_inf_nan=False)] = 0.0  # milliseconds
    message: str | None = None


class _Summary(_Strict):
    tests: int | None = None
    passed: int | None = None
    failed: int | None = None


class _Extra(_Strict):
    evidence: Annotated[list[str], Field(max_length=100)] = []
    reached: Annotated[list[str], Field(max_length=100)] = []


class _Results(_Strict):
    tests: Annotated[list[_Test], Field(max_length=200_000), FailFast()]
    summary: _Summary = _Summary()
    extra: _Extra = _Extra()


class _Ctrf(_Strict):
    results: _Results


def parse_ctrf(data: bytes, node_id: str = "name") -> Report:
    """`node_id`: `name`, or `suite.name`. Raises ReportError."""
    try:
        results = _Ctrf.model_validate_json(data).results
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ReportError(f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg'].lower()}") from error
    counts = {
        "tests": len(results.tests),
        "passed": sum(test.status == "passed" for test in results.tests),
        "failed": sum(test.status == "failed" for test in results.tests),
    }
    said = {name: getattr(results.summary, name) for name in counts}
    wrong = tuple(
        f"the summary counts {said[name]} {name}, the list {count}"
        for name, count in counts.items()
        if said[name] not in (None, count)
    )
    whole = joined(_one(test, _name(test, node_id)) for test in results.tests)
    return replace(whole, contradictions=wrong, evidence=tuple(results.extra.evidence), reached=tuple(results.extra.reached))


def _one(test: _Test, name: str) -> Report:
    messages = {name: test.message} if test.message else {}
    return Report({name: _status(test)}, {name: test.duration / 1000}, messages=messages)


def _name(test: _Test, node_id: str) -> str:
    if node_id == "name" or not test.suite:
        return test.name
    return f"{test.suite if isinstance(test.suite, str) else '.'.join(test.suite)}.{test.name}"


def _status(test: _Test) -> TestStatus:
    match test.status:
        case "passed":
            return "passed"
        case "failed" | "skipped":
            return "failed"
        case _:
            return "error"
