"""What a policy runs cannot get out of its sandbox, and what it breaks is its own; afterwards the pool is as it was."""

import asyncio
import os
import platform
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from escapes import ESCAPES, Escape
from exhaustion import EXHAUSTION

from gagar_sandbox import ExecResult, Limits, LocalPool, SandboxSpec
from gagar_sandbox.cgroup_find import find_cgroups
from gagar_sandbox.local import LocalSandbox
from gagar_sandbox.owner import prefix

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks name system calls by their numbers there"),
]
LIMITS = Limits(memory_mb=64, processes=24, file_size_mb=8, disk_mb=16)
EXHAUST_S = 0.7
AT_ONCE = 3
SEE = "cat hello.txt; ls -A . /tmp /logs /var/tmp /dev/shm; set -- /proc/[0-9]*; echo $#; ipcs -m | grep -c 0x"
AS_NEW = "hello.:\nhello.txt\n\n/dev/shm:\n\n/logs:\n\n/tmp:\n\n/var/tmp:\n2\n0\n"


@dataclass(frozen=True)
class Host:
    folder: Path
    port: int
    victim: int


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Secrets, sockets and processes that attacks look for."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text("hunter2")
    before = os.environ.get("GAGAR_SECRET")
    os.environ["GAGAR_SECRET"] = "hunter2"
    listening = [socket.create_server(("127.0.0.1", 0))]
    for address in ("\0gagar-hostile", str(folder / "socket")):
        listening.append(socket.socket(socket.AF_UNIX))
        listening[-1].bind(address)
        listening[-1].listen()
    yield Host(folder, listening[0].getsockname()[1], os.getpid())
    for one in listening:
        one.close()
    os.environ.pop("GAGAR_SECRET") if before is None else os.environ.update(GAGAR_SECRET=before)


@pytest.fixture(scope="module")
def outcomes(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ExecResult, str]]:
    """Of every attack: what became of its command, and what its sandbox held after a reset."""
    base = tmp_path_factory.mktemp("base")
    (base / "hello.txt").write_text("hello")
    before = processes(), mounts(), groups()
    found = asyncio.run(attack_all(host, base))
    assert (processes(), mounts(), groups()) == before
    assert [path.name for path in base.iterdir()] == ["hello.txt"]
    return found


async def attack_all(host: Host, base: Path) -> dict[str, tuple[ExecResult, str]]:
    pool = LocalPool(AT_ONCE + 1)
    spec = SandboxSpec(base, limits=LIMITS)
    found: dict[str, tuple[ExecResult, str]] = {}
    todo = [*((one, 60.0) for one in ESCAPES), *((Escape(*item), EXHAUST_S) for item in EXHAUSTION.items())]
    other = await pool.acquire(spec)
    await other.write("/tmp/flag-of-another", b"flag")
    waiting = asyncio.create_task(other.exec(["bash", "-c", "exec -a victim sleep 1000"], timeout_s=1000))

    async def work() -> None:
        sandbox = await pool.acquire(spec)
        while todo:
            attack, seconds = todo.pop()
            found[attack.name] = await attack_one(sandbox, placed(attack, host), seconds)
        await sandbox.close()

    try:
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        assert not waiting.done()  # no attack has reached the other sandbox
    finally:
        waiting.cancel()
        await pool.close()
    return found


async def attack_one(sandbox: LocalSandbox, attack: Escape, seconds: float) -> tuple[ExecResult, str]:
    result = await sandbox.exec(["python3", "-c", attack.code], timeout_s=seconds, output_limit=4000)
    await sandbox.reset()
    after = await sandbox.exec(["sh", "-c", SEE], timeout_s=20)
    return result, (after.stdout + after.stderr).decode()


def placed(attack: Escape, host: Host) -> Escape:
    code = attack.code.replace("HOST", str(host.folder)).replace("PORT", str(host.port)).replace("OTHER", str(host.victim))
    return replace(attack, code=code)


def processes() -> list[int]:
    return sorted(process.pid for process in psutil.Process().children(recursive=True))


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def groups() -> list[str]:
    found = find_cgroups()
    return [path.name for parent in found.parents for path in parent.glob(f"{prefix()}*")] if found else []


def honest(result: ExecResult) -> bool:
    """Whether the attack failed because it was refused, and not for a fault of its own."""
    return not re.search(rb"^(Syntax|Name|Type|Attribute|Import|Index|Value|Unicode\w*)Error", result.stderr, re.M)


def test_there_are_many() -> None:
    assert len(ESCAPES) + len(EXHAUSTION) >= 60
    assert len({attack.name for attack in ESCAPES} | set(EXHAUSTION)) == len(ESCAPES) + len(EXHAUSTION)


@pytest.mark.parametrize("name", [attack.name for attack in ESCAPES])
def test_nothing_is_got(outcomes: dict[str, tuple[ExecResult, str]], name: str) -> None:
    result, after = outcomes[name]
    assert b"got" not in result.stdout, result.stdout
    assert result.outcome == "exited"
    assert honest(result), result.stderr
    assert after == AS_NEW


@pytest.mark.parametrize("name", EXHAUSTION)
def test_what_is_exhausted_is_its_own(outcomes: dict[str, tuple[ExecResult, str]], name: str) -> None:
    result, after = outcomes[name]
    assert honest(result), result.stderr
    assert len(result.stdout) + len(result.stderr) < 10_000
    assert after == AS_NEW
