"""The plugin of pytest that tells outcomes, and what it sees being tampered with."""

from __future__ import annotations

import random

import pytest
from codes import Codes  # type: ignore[import-not-found]
from noted import Noted  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HOOKS = (
    *("pytest_runtest_makereport", "pytest_runtest_protocol", "pytest_runtest_call", "pytest_runtest_logreport"),
    *("pytest_pyfunc_call", "pytest_collection_modifyitems", "pytest_report_teststatus", "pytest_sessionfinish"),
)
MESSAGE_CHARACTERS = 2000
ORDER = {"skipped": 0, "passed": 1, "failed": 2}


class Watch:
    """`seed`: of another order of the tests, "" for their own. `repository`: where no code of the runner's comes from. `ours`:
    files of tests that are not the suite's."""

    def __init__(
        self, tell: Callable[[dict[str, Any]], None], seed: str, repository: tuple[str, ...], suite: str, ours: list[str]
    ) -> None:
        self._tell = tell
        self._seed = seed
        self._repository = repository
        self._suite = suite
        self._ours = ours
        self._noted = Noted()
        self._items: dict[str, Any] = {}
        self._outcomes: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        ours = [item for item in items if str(item.path) in self._ours]
        theirs = [item for item in items if str(item.path) not in self._ours]
        if self._seed:
            theirs = shuffled(theirs, random.Random(self._seed))
        items[:] = mixed(theirs, ours)

    def pytest_collection_finish(self, session: Any) -> None:
        self._codes = Codes(self._suite, session.config)
        self._items = {item.nodeid: item for item in session.items if str(item.path) not in self._ours}
        self._look(session.config, "collection")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell({"id": f"{report.nodeid} (collection)", "status": "failed", "seconds": 0.0, "message": text_of(report)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if nodeid in self._items and (name := self._codes.replaced(self._items[nodeid])) is not None:
            self._tell({"evidence": f"{name} is not the code of its file, as seen before {nodeid}"})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        new = {"id": report.nodeid, "status": "skipped", "seconds": 0.0, "message": ""}
        known = self._outcomes.setdefault(report.nodeid, new)
        status = "skipped" if report.skipped or hasattr(report, "wasxfail") else "failed" if report.failed else "passed"
        if report.when == "call" or status == "failed":
            known["status"] = max(known["status"], status, key=lambda s: ORDER[s])
        known["seconds"] += max(0.0, report.duration)
        known["message"] = known["message"] or (text_of(report) if report.failed else "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._say(self._noted.some_replaced(), nodeid)
        if (known := self._outcomes.pop(nodeid, None)) is not None:
            self._tell(known)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        self._look(session.config, "the last test")

    def _look(self, config: Any, after: str) -> None:
        self._say(self._noted.replaced(), after)
        for name in HOOKS:
            for implementation in getattr(config.hook, name).get_hookimpls():
                file = getattr(getattr(implementation.function, "__code__", None), "co_filename", "")
                if file.startswith(self._repository) or not file:
                    self._tell({"evidence": f"the repository hooks into pytest: {name}"})

    def _say(self, replaced: list[str], after: str) -> None:
        for what in replaced:
            self._tell({"evidence": f"{what} was replaced, as seen after {after}"})


def text_of(report: Any) -> str:
    return str(report.longreprtext)[-MESSAGE_CHARACTERS:]


def shuffled(items: list[Any], rng: random.Random) -> list[Any]:
    """Files in another order, and the tests of each: what fixtures of a file do stays done once."""
    files: dict[str, list[Any]] = {}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    order = list(files)
    rng.shuffle(order)
    return [item for path in order for item in rng.sample(files[path], len(files[path]))]


def mixed(theirs: list[Any], ours: list[Any]) -> list[Any]:
    """Tests of ours between the files of the suite, at places drawn for this run."""
    bounds = [0, *(n for n in range(1, len(theirs)) if theirs[n].path != theirs[n - 1].path), len(theirs)]
    places = sorted(random.SystemRandom().choice(bounds) for _ in ours)
    result, at = [], 0
    for place, item in zip(places, ours, strict=True):
        result += [*theirs[at:place], item]
        at = place
    return result + theirs[at:]
