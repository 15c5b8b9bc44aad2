"""What a sandbox costs, beside a plain process and a bare bubblewrap in the same run: `python benchmarks/sandbox.py [ROUNDS]`."""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gagar_sandbox import LocalPool, SandboxSpec
from gagar_sandbox.host import find_bwrap

TIMEOUT_S = 60.0
BARE = "--unshare-all --as-pid-1 --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev"


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        (Path(base) / "file").write_bytes(b"x" * 4096)
        rows = asyncio.run(measure(Path(base), rounds))
    print(f"{'milliseconds, ' + str(rounds) + ' rounds':<36}{'median':>10}{'p95':>10}")
    for name, times in rows:
        median, p95 = (1000 * value for value in (statistics.median(times), statistics.quantiles(times, n=20)[-1]))
        print(f"{name:<36}{median:>10.2f}{p95:>10.2f}")


async def measure(base: Path, rounds: int) -> list[tuple[str, list[float]]]:
    pool = LocalPool()
    try:
        sandbox = await pool.acquire(SandboxSpec(base))
        calls = {
            "plain process: true": lambda: run(["/usr/bin/true"]),
            "bare bwrap: true": lambda: run([str(find_bwrap()), *BARE.split(), "/usr/bin/true"]),
            "sandbox: acquire and close": lambda: live(pool, base),
            "sandbox: exec true": lambda: sandbox.exec(["/usr/bin/true"], timeout_s=TIMEOUT_S),
            "sandbox: read 4 KiB": lambda: sandbox.read("file"),
            "sandbox: write 4 KiB": lambda: sandbox.write("file", b"y" * 4096),
        }
        # In turns, so that a change of the machine's load falls on all of them.
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                started = time.perf_counter()
                await call()
                times[name].append(time.perf_counter() - started)
        return list(times.items())
    finally:
        await pool.close()


async def run(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=TIMEOUT_S)


async def live(pool: LocalPool, base: Path) -> None:
    await (await pool.acquire(SandboxSpec(base))).close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
