"""What a pool of pods costs: `python benchmarks/sandbox_pool.py [--pods N] [--execs N] [--sessions N] [--real N]`.

On the fake API server of the tests, a process of its own whose pods are bubblewrap: so many sandboxes asked for at once and held,
commands in many of them at the same moment, and sessions in pods used again and in pods used once, 64 at a time. A session is
acquire, three commands, close. `--real`: sessions on a real kube-apiserver and scheduler, where their programs are at hand; the
virtual kubelet is part of this process then, and its CPU of what is shown.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kubernetes_asyncio.client import Configuration

from gagar_sandbox import SandboxSpec
from gagar_sandbox.kubernetes import KubernetesPool, PodSettings, PoolSettings, configuration, open_pool
from gagar_sandbox.kubernetes.sandbox import PodSandbox

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "kubernetes"
PODS = PodSettings("gagar-sandboxes", "registry.test/gagar-sandbox:1", "registry.test/task:1", "benchmark", "run")
COMMAND_S = 600.0
AT_ONCE = 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one stretch of work: `cpu_s` is that of the controller, this process."""

    what: str
    count: int
    seconds: float
    cpu_s: float
    writes: int

    def __str__(self) -> str:
        each = f"{1000 * self.cpu_s / self.count:8.2f}{self.writes / self.count:10.2f}"
        return f"{self.what:<44}{self.count:>7}{self.seconds:>10.1f}{self.count / self.seconds:>10.1f}{each}"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("pods", 2000), ("execs", 500), ("sessions", 1000), ("real", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()
    print(f"{'':<44}{'count':>7}{'seconds':>10}{'a second':>10}{'CPU ms':>8}{'writes':>10}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "base").mkdir()
        (folder / "base" / "file").write_bytes(b"x" * 4096)
        subprocess.run(["make", "-s", "-C", str(ROOT / "sandbox" / "image"), f"TARGET={folder / 'gagar-init'}"], check=True)
        with fake_server(folder) as address:
            asyncio.run(on_fake(address, folder / "base", sizes))
        if sizes.real:
            asyncio.run(on_real(folder, sizes.real))


@contextmanager
def fake_server(folder: Path) -> Iterator[str]:
    words = [sys.executable, str(TESTS / "fake_api.py"), str(folder / "pods"), str(folder / "gagar-init")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()
        counts = json.loads(server.stdout.readline())
        print(f"the server saw at most {counts['most_pods']} pods at once, and {counts['left']} were left")


async def on_fake(address: str, base: Path, sizes: argparse.Namespace) -> None:
    settings = PoolSettings(concurrency=sizes.pods, spare=0, execs=max(sizes.execs, 1), start_s=600.0)
    pool = await open_pool(PODS, settings, Configuration(host=address))
    held = await measured("sandboxes held at once", pool, sizes.pods, hold(pool, base, sizes.pods))
    busy = held[: sizes.execs]
    commands = asyncio.gather(*(sandbox.exec(["sleep", "2"], timeout_s=COMMAND_S) for sandbox in busy))
    await measured("commands of 2 s, all at once", pool, len(busy), commands)
    await measured("sandboxes closed", pool, len(held), asyncio.gather(*(sandbox.close() for sandbox in held)))
    await pool.close()
    for uses, name in ((64, "sessions, pods used again"), (1, "sessions, pods used once")):
        pool = await open_pool(PODS, PoolSettings(concurrency=AT_ONCE, uses=uses), Configuration(host=address))
        await measured(name, pool, sizes.sessions, sessions(pool, base, sizes.sessions))
        await pool.close()


async def on_real(folder: Path, count: int) -> None:
    sys.path.insert(0, str(TESTS))
    from real_server import ADMIN, RealServer
    from virtual_kubelet import VirtualKubelet

    with RealServer.serve(folder / "server") as server:
        await server.apply(ROOT / "k8s" / "sandboxes")
        kubelet = VirtualKubelet(server.url, ADMIN, folder / "real-pods", folder / "gagar-init", server.programs["openssl"])
        async with kubelet.serve():
            cluster = await configuration(str(server.folder / "admin.kubeconfig"))
            for uses, name in ((64, "real server: sessions, pods used again"), (1, "real server: sessions, pods used once")):
                pool = await open_pool(PODS, PoolSettings(concurrency=AT_ONCE, uses=uses), cluster)
                await measured(name, pool, count, sessions(pool, folder / "base", count))
                await pool.close()


async def measured(what: str, pool: KubernetesPool, count: int, work: Awaitable[T]) -> T:
    started, cpu, writes = time.perf_counter(), time.process_time(), pool.api.writes
    result = await work
    seconds = time.perf_counter() - started
    print(Figures(what, count, seconds, time.process_time() - cpu, pool.api.writes - writes), flush=True)
    return result


async def hold(pool: KubernetesPool, base: Path, count: int) -> list[PodSandbox]:
    return await asyncio.gather(*(pool.acquire(SandboxSpec(base)) for _ in range(count)))


async def sessions(pool: KubernetesPool, base: Path, count: int) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with limit:
            sandbox = await pool.acquire(SandboxSpec(base))
            for _ in range(3):
                assert (await sandbox.exec(["true"], timeout_s=COMMAND_S)).exit_code == 0
            await sandbox.close()

    await asyncio.gather(*(one() for _ in range(count)))


if __name__ == "__main__":
    main()
