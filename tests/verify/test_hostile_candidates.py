"""Code of a hostile policy under the generated tasks' own driver: it fails, and cannot make its failure vanish."""

import ctypes
import json
from collections.abc import Callable
from typing import Any

import pytest

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import extract_patch
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool, Sandbox

pytestmark = pytest.mark.hostile

InSession = Callable[[Callable[[Sandbox], Any]], Any]
WithPool = Callable[[Callable[[LocalPool], Any]], Any]

FORGE = """
import json, os, time
def forge():
    tests = [{"name": case, "status": "passed"} for case in CASE_IDS]
    os.makedirs("/logs/verifier", exist_ok=True)
    with open("/logs/verifier/report.json", "w") as file:
        json.dump({"results": {"tests": tests}}, file)
"""

FORGE_LATER = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            forge()
            time.sleep(0.001)
"""

PRINT = """
import os
for descriptor in range(64):
    try:
        os.write(descriptor, b'0 38\\n{"results": {"tests": []}}\\n')
    except OSError:
        pass
"""

PATCH_BUILTINS = """
import builtins
class Anything(str):
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
builtins.repr = lambda value: Anything("")
builtins.getattr = lambda *arguments: None
builtins.__import__ = lambda *arguments: None
"""

LEAVE_SLEEPERS = """
import os, time
for number in range(100):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        os._exit(0)
"""

READ_TESTS = """
import os
def answer_for(name, arguments):
    for root in ("", f"/proc/{os.getppid()}/root", "/proc/1/root"):
        try:
            exec(open(root + "/tests/cases.py").read(), globals())
        except OSError:
            continue
        for _, _, function, known, expected in CASES:
            if function == name and known == arguments:
                return type("Forged", (), {"__repr__": lambda self: expected})()
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *arguments: answer_for(name, arguments)
"""

READ_PARENT = """
import os
def search(*arguments):
    for line in open(f"/proc/{os.getppid()}/maps"):
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        memory = open(f"/proc/{os.getppid()}/mem", "rb")
        memory.seek(start)
        if b"CASES" in memory.read(end - start):
            os.kill(os.getppid(), 9)
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return search
"""

ATTACKS = {
    "exits at import": "import os; os._exit(0)",
    "raises SystemExit at import": "import sys; sys.exit(0)",
    "loops at import": "while True: pass",
    "ignores its limit": "import signal\nsignal.signal(signal.SIGXCPU, lambda *a: None)\nwhile True: pass",
    "prints answers and reports": PRINT,
    "forges the report": FORGE + "forge()\nos._exit(0)",
    "forges the report later": FORGE + FORGE_LATER,
    "forges the report and kills the parent": FORGE + "forge()\nos.kill(os.getppid(), 9)",
    "kills everything": "import os; os.kill(-1, 9)",
    "stops the parent": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)",
    "patches the builtins": PATCH_BUILTINS,
    "eats the memory": "hoard = []\nwhile True: hoard.append(bytearray(1 << 24))",
    "leaves processes behind": LEAVE_SLEEPERS,
    "reads the expected values": READ_TESTS,
    "reads the parent's memory": READ_PARENT,
}

NEED_LANDLOCK = {"forges the report later", "reads the expected values"}


def has_landlock() -> bool:
    return bool(ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1)


def verify_files(with_pool: WithPool, in_session: InSession, task: Task, files: dict[str, str]) -> Verification:
    async def change(sandbox: Sandbox) -> str:
        for name, text in files.items():
            await sandbox.write(name, text.encode())
        return await extract_patch(sandbox, task)

    patch = in_session(change)
    result: Verification = with_pool(lambda pool: Verifier(pool, Limits(), 30.0).verify(task, patch))
    return result


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_fails_and_is_no_infrastructure_error(
    attack: str, with_pool: WithPool, in_session: InSession, task: Task
) -> None:
    if attack in NEED_LANDLOCK and not has_landlock():
        pytest.skip("this kernel has no Landlock, without which the driver does not defend against this")
    ids = json.dumps([*task.fail_to_pass, *task.pass_to_pass])
    broken = {path.name: ATTACKS[attack].replace("CASE_IDS", ids) for path in task.repository.iterdir()}
    result = verify_files(with_pool, in_session, task, broken)
    assert result.reward == 0.0
    assert result.infrastructure_error is None
    assert not any(result.tests[name] == "passed" for name in task.fail_to_pass)


STRAY = {
    "json.py": "raise SystemExit",
    "os.py": "raise SystemExit",
    "conftest.py": "raise SystemExit",
    "sitecustomize.py": "raise SystemExit",
    "usercustomize.py": "raise SystemExit",
    "run_tests.py": "raise SystemExit",
    "evil.pth": "import sys; sys.exit(0)",
    "test.sh": "exit 0",
    "pyvenv.cfg": "home = /app",
}


def test_stray_files_change_neither_a_failure_nor_a_success(with_pool: WithPool, in_session: InSession, task: Task) -> None:
    failure = verify_files(with_pool, in_session, task, STRAY)
    assert {n for n, status in failure.tests.items() if status == "failed"} == set(task.fail_to_pass)
    assert failure.infrastructure_error is None

    async def change(sandbox: Sandbox) -> str:
        for name, text in STRAY.items():
            await sandbox.write(name, text.encode())
        fix = (task.directory / "solution" / "fix.patch").read_bytes()
        assert (await sandbox.exec(["git", "apply", "-"], timeout_s=30, stdin=fix)).exit_code == 0
        return await extract_patch(sandbox, task)

    patch = in_session(change)
    assert with_pool(lambda pool: Verifier(pool, Limits(), 30.0).verify(task, patch)).reward == 1.0


def test_an_endless_loop_in_a_function_has_failed(with_pool: WithPool, in_session: InSession, task: Task) -> None:
    name = next(path.name for path in task.repository.iterdir())
    text = (task.repository / name).read_text()
    result = verify_files(
        with_pool, in_session, task, {name: text.replace("    return ", "    while True: pass\n    return ", 1)}
    )
    assert result.reward == 0.0 and result.infrastructure_error is None
