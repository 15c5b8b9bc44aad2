"""pytest on a suite, each outcome told through a descriptor; started by `run_pytest.py`, which see.

Modules of the standard library and of the environment come before those of the repository, so that none of these takes the
place of one of those. What pytest, pluggy and unittest are made of is noted before code of the repository is imported, and
looked at again after each test."""

from __future__ import annotations

import builtins
import hashlib
import importlib
import itertools
import json
import os
import random
import sys
from types import FunctionType

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from codes import Codes  # type: ignore[import-not-found]

sys.path.pop(0)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

SITE = "/opt/site-packages"
SETTINGS = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
WATCHED = ("_pytest", "pytest", "pluggy", "unittest")
HOOKS = (
    *("pytest_runtest_makereport", "pytest_runtest_protocol", "pytest_runtest_call", "pytest_runtest_logreport"),
    *("pytest_pyfunc_call", "pytest_collection_modifyitems", "pytest_report_teststatus", "pytest_sessionfinish"),
)
BY_PYTEST = {"_getini_unknown_type"}  # what pytest itself replaces, in legacypath.py
PARTS = 20  # of all that is watched, one a test
MESSAGE_CHARACTERS = 2000
ORDER = {"skipped": 0, "passed": 1, "failed": 2}


def main() -> NoReturn:
    channel, seed, source, suite, *canaries = sys.argv[1:]
    key = os.read(0, 32)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(int(channel), False)
    sys.argv[:] = ["pytest"]
    sys.path[:] = [*(path for path in sys.path if "site-packages" not in path), SITE]
    plugins = list(environment_plugins())
    for name in ("unittest.mock", "unittest.async_case", "_pytest.unittest", "_pytest.doctest"):
        importlib.import_module(name)
    pytest = importlib.import_module("pytest")
    tell = teller(int(channel), key)
    watch = make_plugin(pytest, tell, seed, source, suite, canaries)
    sys.path.append(source)
    found = [name for name in SETTINGS if os.path.isfile(f"{suite}/{name}")]
    settings = f"{suite}/{found[0]}" if found else os.devnull
    words = [
        "-q",
        "--tb=short",
        "--no-summary",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "--rootdir",
        suite,
        "-c",
        settings,
    ]
    for plugin in plugins:
        words += ["-p", plugin]
    code = int(pytest.main([*words, suite, *canaries], plugins=[watch]))
    tell({"end": code})
    sys.stdout.flush()
    os._exit(code)


def environment_plugins() -> Iterator[str]:
    """Of pytest, by the entry points of the environment alone."""
    metadata = importlib.import_module("importlib.metadata")
    for distribution in metadata.distributions(path=[SITE]):
        for entry in distribution.entry_points:
            if entry.group == "pytest11":
                yield entry.value.partition(":")[0]


def teller(channel: int, key: bytes) -> Callable[[dict[str, Any]], None]:
    """Writes one signed line. What it needs is bound here, before anything could replace it."""
    write, dumps, blake2b = os.write, json.dumps, hashlib.blake2b
    told = iter(range(1 << 62))

    def tell(what: dict[str, Any]) -> None:
        text = dumps(what).encode()
        line = blake2b(b"%d " % next(told) + text, key=key, digest_size=16).hexdigest().encode() + b" " + text + b"\n"
        while line:
            line = line[write(channel, line) :]

    return tell


def make_plugin(
    pytest: Any, tell: Callable[[dict[str, Any]], None], seed: str, source: str, suite: str, canaries: list[str]
) -> Any:
    """The plugin of pytest that tells outcomes and what it sees being tampered with."""
    look = watcher()
    outcomes: dict[str, dict[str, Any]] = {}
    workdir = os.getcwd()
    items: dict[str, Any] = {}

    class Watch:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            ours = [item for item in items if str(item.path) in canaries]
            theirs = [item for item in items if str(item.path) not in canaries]
            if seed:
                theirs = shuffled(theirs, random.Random(seed))
            items[:] = mixed(theirs, ours)

        def pytest_collection_finish(self, session: Any) -> None:
            self.codes = Codes(suite, session.config)
            items.update((item.nodeid, item) for item in session.items if str(item.path) not in canaries)
            seen(look(True), "collection")
            hooks(session.config.hook)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tell({"id": f"{report.nodeid} (collection)", "status": "failed", "seconds": 0.0, "message": text_of(report)})

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            if nodeid in items and (name := self.codes.replaced(items[nodeid])) is not None:
                tell({"evidence": f"{name} is not the code of its file, as seen before {nodeid}"})

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            known = outcomes.setdefault(report.nodeid, {"id": report.nodeid, "status": "skipped", "seconds": 0.0, "message": ""})
            status = "skipped" if report.skipped or hasattr(report, "wasxfail") else "failed" if report.failed else "passed"
            if report.when == "call" or status == "failed":
                known["status"] = max(known["status"], status, key=lambda s: ORDER[s])
            known["seconds"] += max(0.0, report.duration)
            known["message"] = known["message"] or (text_of(report) if report.failed else "")

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            seen(look(False), nodeid)
            if (known := outcomes.pop(nodeid, None)) is not None:
                tell(known)

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self, session: Any) -> None:
            seen(look(True), "the last test")
            hooks(session.config.hook)

    def seen(replaced: list[str], after: str) -> None:
        for what in replaced:
            tell({"evidence": f"{what} was replaced, as seen after {after}"})

    def hooks(relay: Any) -> None:
        for name in HOOKS:
            for implementation in getattr(relay, name).get_hookimpls():
                file = getattr(getattr(implementation.function, "__code__", None), "co_filename", "")
                if file.startswith((workdir, source)) or not file:
                    tell({"evidence": f"the repository hooks into pytest: {name}"})

    return Watch()


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


def watcher() -> Callable[[bool], list[str]]:
    """A function that names what was replaced since now, of the test runner's code and of the builtins; each once. Not asked for
    all of it, it looks at the next part."""
    noted = [
        (
            vars(owner),
            name,
            value,
            getattr(value, "__code__", None),
            f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}",
        )
        for module in list(sys.modules.values())
        if module.__name__.partition(".")[0] in WATCHED
        for owner in (module, *classes_of(module))
        for name, value in list(vars(owner).items())
        if isinstance(value, FunctionType | type | staticmethod | classmethod | property) and name not in BY_PYTEST
    ]
    noted += [(vars(builtins), name, value, None, f"builtins.{name}") for name, value in vars(builtins).items() if name != "_"]
    parts = itertools.cycle([noted[part::PARTS] for part in range(PARTS)])
    said: set[str] = set()

    def look(everywhere: bool) -> list[str]:
        new = [
            title
            for space, name, value, code, title in (noted if everywhere else next(parts))
            if (space.get(name) is not value or (code is not None and value.__code__ is not code)) and title not in said
        ]
        said.update(new)
        return new[:5]

    return look


def classes_of(module: Any) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]


if __name__ == "__main__":
    main()
