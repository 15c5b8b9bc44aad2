"""Whatever dies or lies, the caller gets SandboxLost and nothing stays behind."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from gagar_sandbox import Limits, SandboxLost
from gagar_sandbox.cell import Cell
from gagar_sandbox.inside.frames import pack
from gagar_sandbox.link import Link
from gagar_sandbox.local import LocalSandbox
from gagar_sandbox.process import Process

PR_SET_CHILD_SUBREAPER = 36
CONTROLLER = """
import asyncio, sys
from pathlib import Path
from gagar_sandbox import LocalPool, SandboxSpec

async def main():
    pool = LocalPool(4)
    print("ready", flush=True)
    while True:
        await asyncio.gather(*(live(pool) for _ in range(4)))

async def live(pool):
    sandbox = await pool.acquire(SandboxSpec(Path(sys.argv[1])))
    await sandbox.exec(["sh", "-c", "setsid sleep 1000 & exec sleep 1000"], timeout_s=0.2)
    await sandbox.close()

asyncio.run(main())
"""


@pytest.fixture
def heir_of_orphans() -> Iterator[None]:
    """What a killed child leaves behind becomes a child of this process."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.parametrize("kill_after_s", [0, 0.02, 0.04, 0.08, 0.16, 0.5])
def test_nothing_outlives_a_killed_controller(
    base: Path, heir_of_orphans: None, left_behind: Callable[[], list[psutil.Process]], kill_after_s: float
):
    """Killed with -9 while sandboxes start, run and close."""
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, str(base)], stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None and controller.stdout.readline() == b"ready\n"
        time.sleep(kill_after_s)
        controller.kill()
    deadline = time.monotonic() + 30
    while left := left_behind():
        for process in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_death_of_pid_1_under_a_call(use):
    async def body(sandbox: LocalSandbox) -> None:
        running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=1000))
        sleeping = await found("sleep")
        os.kill(sleeping.ppid(), signal.SIGKILL)
        with pytest.raises(SandboxLost, match="died"):
            await running
        with pytest.raises(SandboxLost, match="closed"):
            await sandbox.read("hello.txt")
        assert await asyncio.to_thread(sleeping.wait, 60) is None

    use(body)


async def found(name: str) -> psutil.Process:
    for _ in range(1000):
        for process in psutil.Process().children(recursive=True):
            if process.name() == name:
                return process
        await asyncio.sleep(0.02)
    raise AssertionError(f"no {name} was started")


async def never(*_: object) -> None:
    raise AssertionError("nobody closes it")


@contextlib.asynccontextmanager
async def talking(script: str) -> AsyncIterator[Link]:
    """A link to a program of Python's in the place of PID 1."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen([sys.executable, "-c", script], stdin=theirs, stdout=theirs)
    link = await Link.open(ours, Process(os.pidfd_open(child.pid)))
    yield link
    await link.close()
    child.wait(60)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((1 << 31).to_bytes(4, "big"), "2147483648 bytes"),
        (b"\0\0\0\x05\0\0\0\xffx", "runs past"),
        (b"\0\0", "died"),
        (b"", "died"),
    ],
)
def test_frames_that_are_none(answer: bytes, complaint: str):
    async def body() -> None:
        async with talking(f"import os, sys; sys.stdin.read(1); os.write(1, {answer!r})") as link:
            with pytest.raises(SandboxLost, match=complaint):
                await link.call(b"exec", reply_bytes=100, timeout_s=60)
            with pytest.raises(SandboxLost, match="closed"):
                await link.call(b"exec", reply_bytes=100, timeout_s=60)

    asyncio.run(body())


@pytest.mark.parametrize(
    "fields",
    [
        (b"won", b"0", b"0", b"", b""),
        (b"exited", b"-1", b"0", b"", b""),
        (b"exited", "٣".encode(), b"0", b"", b""),
        (b"exited", b"0", b"maybe", b"", b""),
        (b"exited", b"0", b"0", b""),
        (),
        (b"\xff", b"0", b"0", b"", b""),
    ],
)
def test_replies_that_are_none(fields: tuple[bytes, ...]):
    async def body() -> None:
        async with talking(f"import os, sys; sys.stdin.read(1); os.write(1, {pack(*fields)!r})") as link:
            sandbox = LocalSandbox(cast(Cell, SimpleNamespace(link=link, ran_out_of_memory=lambda: False)), Limits(), never)
            with pytest.raises(SandboxLost, match="nonsense"):
                await sandbox.exec(["true"], timeout_s=60)

    asyncio.run(body())


def test_silence_has_a_deadline():
    async def body() -> None:
        async with talking("import time; time.sleep(1000)") as link:
            with pytest.raises(SandboxLost, match="did not answer"):
                await link.call(b"exec", reply_bytes=100, timeout_s=0.2)

    asyncio.run(body())
