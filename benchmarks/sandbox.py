"""What a sandbox costs, beside a plain process, a bare bubblewrap and, where asked, SWE-ReX's local runtime in the same run, and
whether anything is left by thousands: `python benchmarks/sandbox.py [--rounds N] [--swerex PYTHON] [--sessions N]`."""

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from gagar_sandbox import LocalPool, SandboxSpec
from gagar_sandbox.cgroup_find import find_cgroups
from gagar_sandbox.host import find_bwrap
from gagar_sandbox.owner import prefix

TIMEOUT_S = 60.0
CONCURRENT = 64
BARE = "--unshare-all --as-pid-1 --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev"
# A session of SWE-ReX is a shell of the host's, without a wall around it.
SWEREX = """
import asyncio, sys, time
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def open_shell(runtime, session):
    while True:  # now and then its shell does not come up, and is not counted
        started = time.perf_counter()
        try:
            await runtime.create_session(CreateBashSessionRequest(session=session, startup_timeout=3))
            return started
        except Exception:
            await runtime.close_session(CloseBashSessionRequest(session=session))

async def main():
    runtime = LocalRuntime()
    await open_shell(runtime, "kept")
    for line in sys.stdin:
        session, started = line.strip(), time.perf_counter()
        if session != "kept":
            started = await open_shell(runtime, session)
        await runtime.run_in_session(BashAction(command="true", session=session))
        if session != "kept":
            await runtime.close_session(CloseBashSessionRequest(session=session))
        print(time.perf_counter() - started, flush=True)
    await runtime.close()

asyncio.run(main())
"""

Call = Callable[[], Awaitable[object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=2000, help="one after the other, then as many 64 at once; 0: none")
    parser.add_argument("--swerex", help="a Python that has swe-rex")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "file").write_bytes(b"x" * 4096)
        rows = asyncio.run(measure(base, given.rounds, given.swerex))
        print(f"{'milliseconds, ' + str(given.rounds) + ' rounds':<40}{'median':>10}{'p95':>10}")
        for name, times in rows.items():
            median, p95 = (1000 * value for value in (statistics.median(times), statistics.quantiles(times, n=20)[-1]))
            print(f"{name:<40}{median:>10.2f}{p95:>10.2f}")
        if given.sessions:
            asyncio.run(leak(base, given.sessions))


async def measure(base: Path, rounds: int, swerex: str | None) -> dict[str, list[float]]:
    """Seconds of each call. In turns, so that a change of the machine's load falls on all of them."""
    pool = LocalPool()
    peer = swerex and subprocess.Popen([swerex, "-c", SWEREX], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        sandbox = await pool.acquire(SandboxSpec(base))
        calls: dict[str, Call] = {
            "plain process: true": lambda: run(["/usr/bin/true"]),
            "bare bwrap: true": lambda: run([str(find_bwrap()), *BARE.split(), "/usr/bin/true"]),
            "sandbox: acquire, true, close": lambda: live(pool, base),
            "sandbox: true": lambda: sandbox.exec(["/usr/bin/true"], timeout_s=TIMEOUT_S),
            "sandbox: reset": sandbox.reset,
            "sandbox: read 4 KiB": lambda: sandbox.read("file"),
            "sandbox: write 4 KiB": lambda: sandbox.write("file", b"y" * 4096),
        }
        if peer:
            calls["SWE-ReX: open a shell, true, close"] = lambda: ask(peer, "new")
            calls["SWE-ReX: true"] = lambda: ask(peer, "kept")
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            await call()
        for _ in range(rounds):
            for name, call in calls.items():
                started = time.perf_counter()
                told = await call()
                times[name].append(told if isinstance(told, float) else time.perf_counter() - started)
        return times
    finally:
        if peer:
            peer.communicate(timeout=TIMEOUT_S)
        await pool.close()


async def run(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=TIMEOUT_S)


async def live(pool: LocalPool, base: Path) -> None:
    sandbox = await pool.acquire(SandboxSpec(base))
    result = await sandbox.exec(["/usr/bin/true"], timeout_s=TIMEOUT_S)
    await sandbox.close()
    assert result.exit_code == 0, result


async def ask(peer: "subprocess.Popen[str]", session: str) -> float:
    """The seconds that it says it took."""
    assert peer.stdin is not None and peer.stdout is not None
    print(session, file=peer.stdin, flush=True)
    return float(peer.stdout.readline())


async def leak(base: Path, sessions: int) -> None:
    """Raises AssertionError where anything is left."""
    before = traces()
    for at_once in (1, CONCURRENT):
        pool = LocalPool(at_once)
        started = time.perf_counter()
        try:
            todo = iter(range(sessions))

            async def work(pool: LocalPool = pool, todo: "object" = todo) -> None:
                for _ in todo:  # type: ignore[attr-defined]
                    await live(pool, base)

            await asyncio.gather(*(work() for _ in range(at_once)))
        finally:
            await pool.close()
        seconds = time.perf_counter() - started
        left = {name: (was, traces()[name]) for name, was in before.items() if traces()[name] != was}
        assert not left, left
        print(f"{sessions} sessions, {at_once} at once: {sessions / seconds:.0f} a second; nothing is left of them")


def traces() -> dict[str, int]:
    """How much there is of all that a sandbox could leave behind."""
    groups = find_cgroups()
    return {
        "processes": len(psutil.Process().children(recursive=True)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "control groups": sum(len(list(parent.glob(f"{prefix()}*"))) for parent in (groups.parents if groups else ())),
        "files": len(list(Path(tempfile.gettempdir()).glob(f"{prefix()}*"))),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    main()
