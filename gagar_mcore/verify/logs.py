"""What test runners print, read by the parsers of SWE-bench.

They are regular expressions made for honest logs; on others they may run without end. So they run in a process of their own,
under a deadline, which is this module as a program: `python -m gagar_mcore.verify.logs PARSER`, a log in, JSON out."""

import asyncio
import importlib
import importlib.util
import json
import re
import sys
import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gagar_mcore.records.types import TestStatus
from gagar_mcore.verify.report import Report, ReportError, joined

DEADLINE_S = 60.0

_STATUSES: dict[str, TestStatus] = {"PASSED": "passed", "XFAIL": "passed", "FAILED": "failed", "SKIPPED": "failed"}
_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"
_LINE_BY_LINE = (
    *("parse_log_cargo", "parse_log_django", "parse_log_googletest", "parse_log_gotest", "parse_log_matplotlib"),
    *("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2", "parse_log_seaborn", "parse_log_sympy"),
)


async def parse_log(log: str, parser: str, deadline_s: float = DEADLINE_S) -> Report:
    """`parser`: a repository that SWE-bench knows, or the name of one of its parsers. What stands between SWE-bench's first mark
    and its last counts, or all where there are none: tests that print a mark hide nothing by it. Of a test with several outcomes
    the worst counts, where its parser reads line by line. Raises ReportError, also for a log that takes longer than
    `deadline_s`."""
    _, started, rest = log.partition(_START)
    between = (rest.rpartition(_END)[0] or rest) if started else log
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, parser),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, complaint = await asyncio.wait_for(process.communicate(between.encode(errors="replace")), deadline_s)
    except TimeoutError as error:
        raise ReportError(f"what the tests printed could not be read in {deadline_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ReportError((complaint.decode(errors="replace").strip().splitlines() or ["the parser failed"])[-1])
    readings: list[dict[str, str]] = json.loads(out)
    return joined(
        Report({name: _STATUSES.get(status, "error") for name, status in one.items() if name in readings[0]}) for one in readings
    )


def find_parser(name: str) -> Callable[[str, Any], dict[str, str]]:
    """Raises ValueError where SWE-bench has no such parser, or is not installed."""
    by_repository = swebench("harness.log_parsers").MAP_REPO_TO_PARSER
    by_name = {parse.__name__: parse for parse in by_repository.values()}
    found: Callable[[str, Any], dict[str, str]] | None = by_repository.get(name) or by_name.get(name)
    if found is None:
        raise ValueError(f"grade.parser: SWE-bench has no parser {name!r}; name a repository it knows, or {min(by_name)}")
    return found


def swebench(name: str) -> ModuleType:
    """A module of swebench without what its packages import first: docker, datasets, modal and the like are needed to build
    images, not to read logs. Raises ValueError where it is not installed."""
    if "swebench" not in sys.modules:
        found = importlib.util.find_spec("swebench")
        if found is None or not found.submodule_search_locations:
            raise ValueError("SWE-bench's parsers are not installed: pip install --no-deps swebench==4.1.0")
        folder = found.submodule_search_locations[0]
        _stand_in("swebench", __path__=[folder])
        _stand_in("swebench.harness", __path__=[f"{folder}/harness"])
        _stand_in("swebench.harness.test_spec", __path__=[])
        _stand_in("swebench.harness.test_spec.test_spec", TestSpec=object)
        _stand_in("swebench.harness.utils", ansi_escape=_without_colours)
    return importlib.import_module(f"swebench.{name}")


def _stand_in(name: str, **contents: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def _main() -> None:
    try:
        parse = find_parser(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    log = sys.stdin.buffer.read().decode(errors="replace")
    readings = [parse(log, None)]
    if parse.__name__ in _LINE_BY_LINE:  # which take the last outcome of a test, so that whoever prints last would decide
        lines = (parse(line, None) for line in log.split("\n"))
        readings.append({name: status for one in lines for name, status in one.items() if _STATUSES.get(status) != "passed"})
    json.dump(readings, sys.stdout)


if __name__ == "__main__":
    _main()
