"""Run the calls of `cases.py` on the code in the working directory and write the report to /logs/verifier.

Needs the standard library alone and is started as `python3 -I -S run_tests.py`, so that no file of the repository
(`sitecustomize.py`, `*.pth`, `conftest.py`, a module named like one of the standard library) takes part in it.

The parent knows the expected values. A child, forked before the parent has read them, imports the candidate's code, gets
the calls through a pipe and sends back the `repr` of each result; the parent compares. Where the kernel offers Landlock
the child can open neither the tests nor the report and, from ABI 6 on, cannot signal the parent. The parent's memory is
closed to it in either case.

Not defended: without Landlock the child can read the expected values and leave a process behind that rewrites the report."""

from __future__ import annotations

import marshal
import os
import resource
import select
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from confine import SYSTEM, confine, hide  # type: ignore[import-not-found]

sys.path.pop(0)

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing, or json and signal for that matter, takes longer than the tests
    from typing import Any, NoReturn

    Case = tuple[str, str, str, tuple[Any, ...], str]  # id, module, function, arguments, repr of the expected result

LOGS = "/logs/verifier"
CPU_SECONDS = 1
WALL_SECONDS = 15.0
MAX_ANSWER_BYTES = 1 << 20
MAX_RESULT_CHARACTERS = 2000

SIGKILL = 9


def main() -> int:
    tests = os.path.dirname(os.path.abspath(__file__))
    calls_read, calls_write = os.pipe()
    answers_read, answers_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(calls_write)
        os.close(answers_read)
        run_child(calls_read, answers_write)
    os.close(calls_read)
    os.close(answers_write)
    hide()
    cases = read_cases(os.path.join(tests, "cases.py"))
    with os.fdopen(calls_write, "wb") as pipe:
        marshal.dump([(module, function, arguments) for _, module, function, arguments, _ in cases], pipe)
    answers = parse_answers(read_answers(answers_read, child, len(cases)))
    stop(child)
    return write_report({case[0]: complaint(case, answers.get(number)) for number, case in enumerate(cases)})


def read_cases(path: str) -> list[Case]:
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    cases: list[Case] = namespace["CASES"]
    return cases


def read_answers(descriptor: int, child: int, count: int) -> bytes:
    """What the child sends until it has answered `count` calls, ends, sends too much or is too slow."""
    deadline = time.monotonic() + WALL_SECONDS
    ended = os.pidfd_open(child)
    answers = b""
    while answers.count(b"\n") < count and len(answers) <= MAX_ANSWER_BYTES:
        ready, _, _ = select.select([descriptor, ended], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(descriptor, 65536) if descriptor in ready else b""
        if not chunk:
            break
        answers += chunk
    return answers


def parse_answers(data: bytes) -> dict[int, str]:
    """The first answer to each call, from lines `NUMBER HEX`; whatever is malformed is no answer."""
    answers: dict[int, str] = {}
    for line in data.split(b"\n"):
        number, _, result = line[: 8 * MAX_RESULT_CHARACTERS + 32].partition(b" ")
        try:
            answers.setdefault(int(number[:9]), bytes.fromhex(result.decode("ascii")).decode())
        except ValueError:
            continue
    return answers


def stop(child: int) -> None:
    """Kill the child and its process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(child, SIGKILL)
        except ProcessLookupError:
            continue
    os.waitpid(child, 0)


def complaint(case: Case, answer: str | None) -> str | None:
    """None where the answer is the expected one."""
    _, _, function, arguments, expected = case
    if answer == expected:
        return None
    said = "gave no answer" if answer is None else f"gives {answer[:200]}, not {expected}"
    return f"{function}({', '.join(map(repr, arguments))}) {said}"


def write_report(complaints: dict[str, str | None]) -> int:
    """The report in the Common Test Report Format (CTRF), and the reward beside it. Ids need no escapes in JSON."""
    failed = {name: text for name, text in complaints.items() if text is not None}
    for name, text in failed.items():
        print(f"FAILED {name}: {text}")
    print(f"{len(complaints) - len(failed)} passed, {len(failed)} failed")
    tests = [
        f'{{"name": "{name}", "status": "{"failed" if text else "passed"}", "duration": 0}}' for name, text in complaints.items()
    ]
    counts = f'"tests": {len(complaints)}, "passed": {len(complaints) - len(failed)}, "failed": {len(failed)}'
    summary = f'{{{counts}, "pending": 0, "skipped": 0, "other": 0, "start": 0, "stop": 0}}'
    os.makedirs(LOGS, exist_ok=True)
    with open(os.path.join(LOGS, "report.json"), "w") as file:
        file.write(f'{{"results": {{"tool": {{"name": "run_tests"}}, "summary": {summary}, "tests": [{", ".join(tests)}]}}}}\n')
    with open(os.path.join(LOGS, "reward.txt"), "w") as file:
        file.write("0\n" if failed else "1\n")
    return 1 if failed else 0


def run_child(calls_descriptor: int, answers_descriptor: int) -> NoReturn:
    os.setsid()
    with os.fdopen(calls_descriptor, "rb") as pipe:
        calls = marshal.load(pipe)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    confine(SYSTEM, (os.getcwd(), "/tmp"))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    for number, (module, function, arguments) in enumerate(calls):
        answer = evaluate(module, function, arguments).encode(errors="replace").hex()
        os.write(answers_descriptor, b"%d %s\n" % (number, answer.encode()))
    os._exit(0)


def evaluate(module: str, function: str, arguments: tuple[Any, ...]) -> str:
    try:
        return repr(getattr(__import__(module), function)(*arguments))[:MAX_RESULT_CHARACTERS]
    except BaseException as error:
        return f"err {type(error).__name__}"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
