"""The plugin of pytest that tells outcomes, and what it sees being tampered with."""

from __future__ import annotations

import os
import random

import pytest
import reached  # type: ignore[import-not-found]
from codes import Codes  # type: ignore[import-not-found]
from noted import Noted  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

OF_A_TEST = ("pytest_runtest_", "pytest_pyfunc_call", "pytest_fixture_setup")
MESSAGE_CHARACTERS = 2000
ORDER = {"skipped": 0, "passed": 1, "failed": 2}


class Watch:
    """`seed`: of another order of the tests, "" for their own. `roots`: where code of the runner's comes from. `ours`: files of
    tests that are not the suite's."""

    def __init__(
        self, tell: Callable[[dict[str, Any]], None], seed: str, roots: tuple[str, ...], suite: str, ours: list[str]
    ) -> None:
        self._tell = tell
        self._seed = seed
        self._ours = ours
        self._noted = Noted()
        self._codes = Codes(suite, (*roots, *map(os.path.dirname, ours)), self._noted.codes)
        reached.watch(tell, self._codes.honest)
        self._said: set[str] = set()
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
        self._codes.config = session.config
        self._items = {item.nodeid: item for item in session.items if str(item.path) not in self._ours}
        self._look(session.config, "collection")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell({"id": f"{report.nodeid} (collection)", "status": "failed", "seconds": 0.0, "message": text_of(report)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if (item := self._items.get(nodeid)) is None:
            return
        if (name := self._codes.replaced(item)) is not None:
            self._tell({"evidence": f"{name} is not the code of its file, as seen before {nodeid}"})
        self._say_once(filter(None, map(self._codes.foreign, item.listchain())), f"the start of {nodeid}")

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
        if nodeid in self._items:
            self._say_once(self._hooked(self._items[nodeid].config, OF_A_TEST), nodeid)
        if (known := self._outcomes.pop(nodeid, None)) is not None:
            self._tell(known)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        self._look(session.config, "the last test")

    def _look(self, config: Any, after: str) -> None:
        self._say(self._noted.replaced(), after)
        self._say_once(self._hooked(config, "pytest_"), after)

    def _hooked(self, config: Any, hooks: str | tuple[str, ...]) -> Iterator[str]:
        """What pytest calls that neither it, the environment nor the suite has. hooks: what the names of those begin with."""
        manager = config.pluginmanager
        if not self._codes.honest(getattr(manager._inner_hookexec, "__code__", None)):
            yield "pluggy's call of hooks"
        for part in (config, manager, config.hook):
            if (name := self._codes.foreign(part)) is not None:
                yield name
        for name, caller in vars(config.hook).items():
            if not name.startswith(hooks):
                continue
            called = [getattr(implementation.function, "__code__", None) for implementation in caller.get_hookimpls()]
            if getattr(caller._hookexec, "__self__", None) is not manager or not all(map(self._codes.honest, called)):
                yield f"pytest's hook {name}"

    def _say_once(self, replaced: Iterable[str], after: str) -> None:
        new = [what for what in replaced if what not in self._said]
        self._said.update(new)
        self._say(new, after)

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
