"""Reports in JUnit's XML, as pytest, Maven, go-junit-report and many others write it."""

import math
import xml.etree.ElementTree as ElementTree

from gagar_mcore.records.types import TestStatus
from gagar_mcore.verify.report import Report, ReportError, joined

MAX_TESTS = 200_000
NOT_RUN = {"notrun", "skipped", "suppressed", "disabled", "failed", "failure", "error"}


def parse_junit(data: bytes, node_id: str = "classname.name") -> Report:
    """`node_id`: `classname.name`, `name`, or `suite.name`. Raises ReportError, also for document types, which could define
    entities without end."""
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ReportError("file: has a document type, which no test runner writes")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ReportError(f"file: {error}") from error
    if root.tag not in ("testsuite", "testsuites"):
        raise ReportError(f"file: <testsuites> is expected, not <{root.tag[:40]}>")
    suites = [suite for suite in root.iter("testsuite") if suite.find("testcase") is not None]
    if sum(len(suite) for suite in suites) > MAX_TESTS:
        raise ReportError(f"file: more than {MAX_TESTS} tests")
    whole = joined(_report(suite, case, node_id) for suite in suites for case in suite.findall("testcase"))
    return Report(whole.tests, whole.seconds, tuple(filter(None, map(_miscounted, suites))))


def _report(suite: ElementTree.Element, case: ElementTree.Element, node_id: str) -> Report:
    name = case.get("name")
    if not name or len(name) > 10_000:
        raise ReportError("testcase: a name of 1 to 10000 characters is required")
    prefix = {"classname.name": case.get("classname"), "suite.name": suite.get("name")}.get(node_id)
    test = f"{prefix}.{name}" if prefix else name
    return Report({test: _status(case)}, {test: _seconds(case)})


def _status(case: ElementTree.Element) -> TestStatus:
    outcomes = {child.tag for child in case}
    if "error" in outcomes:
        return "error"
    said = {case.get("status", "run").lower(), case.get("result", "completed").lower()}  # as GoogleTest has them
    return "failed" if outcomes & {"failure", "skipped"} or said & NOT_RUN else "passed"


def _seconds(case: ElementTree.Element) -> float:
    try:
        seconds = float(case.get("time", "0").replace(",", ""))
    except ValueError:
        raise ReportError(f"testcase: time: {case.get('time', '')[:40]!r} is no number") from None
    if not math.isfinite(seconds):
        raise ReportError("testcase: time: must be finite")
    return seconds


def _miscounted(suite: ElementTree.Element) -> str | None:
    """A suite counts its tests with, or, in some runners, without those of the suites inside it."""
    said = suite.get("tests", "")
    counts = (len(suite.findall("testcase")), sum(1 for _ in suite.iter("testcase")))
    if said.isascii() and said.isdigit() and int(said[:9]) not in counts:
        return f"a suite counts {said[:9]} tests and lists {counts[0]}"
    return None
