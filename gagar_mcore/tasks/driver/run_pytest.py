"""Run the tests of `suite/` with pytest on the code in the working directory and write the report to /logs/verifier.

Started as `python3 -I -S run_pytest.py SOURCE_ROOT`. This process runs no code of the repository. pytest runs in a child
(`child/watch.py`) that tells each outcome through a pipe, signed; the report is written here. Beside the suite it runs tests of
ours, some of which must fail, among the others and under names drawn for this run. Where the kernel offers Landlock the child can
open neither the report nor what this process reads and, from ABI 6 on, cannot signal it; its memory is closed in either case.

Not defended: code under test shares the child with pytest. What it does there is seen where it changes pytest or one of its
parts, traces, looks through memory, makes tests of ours come out wrong, or signs badly; not where it walks up the stack to the
voice of the runner and says what an honest run would."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import secrets
import select
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from confine import SYSTEM, confine, hide  # type: ignore[import-not-found]  # noqa: E402

sys.path.pop(0)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

LOGS = "/logs/verifier"
SITE = "/opt/site-packages"
MAX_BYTES = 64 << 20
LINE_BYTES = 1 << 20
TAIL_S = 1.0
EVIDENCE_CHARACTERS = 300
MOST_SHOWN, SHOWN_CHARACTERS = 5, 500

MUST_FAIL = (
    "assert 1 + len('{0}') == 0",
    "raise ValueError('{0}')",
    "import unittest; unittest.TestCase().assertEqual('{0}', 1)",
    "import pytest\n    with pytest.raises(KeyError):\n        str('{0}')",
    "import pytest; pytest.fail('{0}')",
    "assert not isinstance('{0}', str)",
)
MUST_PASS = ("assert len('{0}') == 16", "assert '{0}' != 1", "str('{0}')")


def main() -> int:
    source = os.path.join(os.getcwd(), sys.argv[1])
    seed = os.environ.get("GAGAR_SHUFFLE", "")
    files, expected = write_canaries()
    hide()
    key = secrets.token_bytes(32)
    told_read, told_write = os.pipe()
    key_read, key_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told_read)
        os.close(key_write)
        run_child(key_read, told_write, source, seed, files)
    os.close(told_write)
    os.close(key_read)
    os.write(key_write, key)
    os.close(key_write)
    lines, status = listen(told_read, child)
    told = judge(lines, key, expected, os.waitstatus_to_exitcode(status))
    return write_report(*told)


def write_canaries() -> tuple[list[str], dict[str, bool]]:
    """Files of tests of ours, and by name whether each must pass."""
    expected: dict[str, bool] = {}
    files = []
    for _ in range(3):
        folder = f"/logs/{secrets.token_hex(8)}"
        os.mkdir(folder)
        bodies = [(body, False) for body in random.sample(MUST_FAIL, 2)] + [(random.choice(MUST_PASS), True)]
        random.shuffle(bodies)
        text = ""
        for body, passes in bodies:
            name = f"test_{secrets.token_hex(8)}"
            expected[name] = passes
            text += f"def {name}():\n    {body.format(secrets.token_hex(8))}\n\n\n"
        files.append(f"{folder}/test_{secrets.token_hex(8)}.py")
        with open(files[-1], "w") as file:
            file.write(text)
    return files, expected


def run_child(key_read: int, told_write: int, source: str, seed: str, files: list[str]) -> NoReturn:
    os.setsid()
    os.dup2(key_read, 0)
    os.set_inheritable(told_write, True)
    readable = (*SYSTEM, SITE, "/run/gagar/bin", f"{HERE}/child", f"{HERE}/suite", *map(os.path.dirname, files))
    confine(readable, (os.getcwd(), "/tmp", "/var/tmp", "/dev"), ("/logs", "/tests"))
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "USER") if name in os.environ}
    words = [sys.executable, "-I", "-S", "-B", f"{HERE}/child/watch.py", str(told_write), seed, source, f"{HERE}/suite", *files]
    os.execve(sys.executable, words, {**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


def listen(descriptor: int, child: int) -> tuple[list[bytes], int]:
    """The lines that the child tells until it ends, and its status. Whatever it leaves behind is killed."""
    data = bytearray()
    ended = os.pidfd_open(child)
    while len(data) <= MAX_BYTES:
        ready, _, _ = select.select([descriptor, ended], [], [])
        chunk = os.read(descriptor, 1 << 16) if descriptor in ready else b""
        data += chunk
        if not chunk:
            break
    _, status = os.waitpid(child, 0) if ended_soon(ended) else (0, 0)
    with contextlib.suppress(ProcessLookupError):  # nothing was left
        os.kill(-1, signal.SIGKILL)
    if not status:
        status = reap(child, status)
    while select.select([descriptor], [], [], 0)[0] and (chunk := os.read(descriptor, 1 << 16)) and len(data) <= MAX_BYTES:
        data += chunk
    return bytes(data).split(b"\n")[:-1], status


def ended_soon(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], TAIL_S)[0])


def reap(child: int, status: int) -> int:
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:
        return status


def judge(
    lines: list[bytes], key: bytes, expected: dict[str, bool], exit_code: int
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Outcomes by test id, what speaks of tampering, and what code of the repository reached for."""
    outcomes: dict[str, Any] = {}
    evidence: list[str] = []
    reached: list[str] = []
    ended: int | None = None
    for number, line in enumerate(lines):
        told = verified(line, key, number)
        if told is None:
            evidence.append("a line of the runner's report is signed badly")
            break
        if ended is not None:
            evidence.append("the runner's report goes on after its end")
            break
        if "end" in told:
            ended = told["end"]
        elif "reached" in told:
            reached.append(str(told["reached"])[:EVIDENCE_CHARACTERS])
        elif "evidence" in told:
            evidence.append(str(told["evidence"])[:EVIDENCE_CHARACTERS])
        elif told["id"] in outcomes:
            evidence.append(f"{told['id']} is reported twice")
        else:
            outcomes[told["id"]] = told
    evidence += list(canaries(outcomes, expected))
    if ended is None:
        print(f"the runner ended before its tests had: exit code {exit_code}")
        outcomes = {name: {**told, "status": "other"} for name, told in outcomes.items()}
    elif ended != exit_code:
        evidence.append(f"the runner ends with {exit_code} and said {ended}")
    elif ended == 0 and any(told["status"] == "failed" for told in outcomes.values()):
        evidence.append("the runner ends with 0, and tests have failed")
    return outcomes, evidence, reached


def verified(line: bytes, key: bytes, number: int) -> dict[str, Any] | None:
    signature, _, text = line[:LINE_BYTES].partition(b" ")
    if signature.decode("ascii", "replace") != hashlib.blake2b(b"%d " % number + text, key=key, digest_size=16).hexdigest():
        return None
    told: dict[str, Any] = json.loads(text)
    return told


def canaries(outcomes: dict[str, Any], expected: dict[str, bool]) -> Iterator[str]:
    """Take the tests of ours from the outcomes, and name those that came out wrong. None at all means that nothing ran."""
    ours = {name: told for name, told in outcomes.items() if name.rpartition("::")[2] in expected}
    for name in ours:
        del outcomes[name]
    told = {name.rpartition("::")[2]: outcome["status"] == "passed" for name, outcome in ours.items()}
    for name, passes in expected.items():
        if name in told and told[name] != passes:
            yield f"a test of ours that must {'pass' if passes else 'fail'} has {'failed' if passes else 'passed'}"
    if outcomes and len(told) < len(expected):
        yield f"{len(expected) - len(told)} of {len(expected)} tests of ours were not reported"


def write_report(outcomes: dict[str, Any], evidence: list[str], reached: list[str]) -> int:
    """The report in the Common Test Report Format (CTRF), and the reward beside it."""
    tests = [
        {"name": name, "status": told["status"], "duration": 1000 * told["seconds"], "message": told["message"]}
        for name, told in outcomes.items()
    ]
    counts = {status: sum(test["status"] == status for test in tests) for status in ("passed", "failed", "skipped", "other")}
    summary = {"tests": len(tests), **counts, "pending": 0, "start": 0, "stop": int(1000 * time.time())}
    extra = {"evidence": evidence[:100], "reached": reached[:100]}
    results = {"tool": {"name": "run_pytest"}, "summary": summary, "tests": tests, "extra": extra}
    os.makedirs(LOGS, exist_ok=True)
    with open(os.path.join(LOGS, "report.json"), "w") as file:
        json.dump({"results": results}, file)
    good = not evidence and counts["passed"] + counts["skipped"] == len(tests) > 0
    with open(os.path.join(LOGS, "reward.txt"), "w") as file:
        file.write("1\n" if good else "0\n")
    for test in [test for test in tests if test["status"] == "failed"][:MOST_SHOWN]:
        print(f"FAILED {test['name']}\n{test['message'][-SHOWN_CHARACTERS:]}")
    print(*(f"evidence of tampering: {line}" for line in evidence), f"{counts['passed']} of {len(tests)} passed", sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
