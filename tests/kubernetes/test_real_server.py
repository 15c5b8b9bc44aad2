"""The pool on a real API server and scheduler, with the rights of its own service account."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pooled import PATIENT, PODS
from real_server import ADMIN, CONTROLLER, NAMESPACE, PLACES, ROOT, Client, RealServer
from virtual_kubelet import VirtualKubelet

from gagar_sandbox import SandboxLost, SandboxSpec, SandboxUnavailable
from gagar_sandbox.kubernetes import KubernetesPool, PoolSettings, configuration, open_pool
from gagar_sandbox.kubernetes.shape import Shape
from gagar_sandbox.kubernetes.starting import until_ready

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]
SETTINGS = replace(PATIENT, concurrency=2000, retry_s=60.0, acquire_s=120.0, start_s=120.0, spare=0)
OURS = replace(PODS, namespace=NAMESPACE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer.serve(tmp_path_factory.mktemp("server")) as running:
        asyncio.run(running.apply(ROOT / "k8s" / "sandboxes"))
        yield running


@pytest.fixture
def use(server: RealServer, tmp_path: Path, image_init: Path) -> Callable[..., None]:
    """Runs a coroutine function on a pool with the controller's rights, and sees that nothing is left."""

    def run(body: Callable[[KubernetesPool, RealServer], Awaitable[None]], settings: PoolSettings = SETTINGS) -> None:
        async def main() -> None:
            kubelet = VirtualKubelet(server.url, ADMIN, tmp_path / "pods", image_init, server.programs["openssl"])
            async with kubelet.serve():
                async with _pool(server, tmp_path, settings) as pool:
                    await body(pool, server)
                assert await _pods(server) == []
            await Client(server.url, ADMIN)("DELETE", "/api/v1/nodes/virtual")

        asyncio.run(main())

    return run


@asynccontextmanager
async def _pool(server: RealServer, folder: Path, settings: PoolSettings) -> AsyncIterator[KubernetesPool]:
    (folder / "kubeconfig").write_text(server.kubeconfig(CONTROLLER))
    pool = await open_pool(OURS, settings, await configuration(str(folder / "kubeconfig")))
    try:
        yield pool
    finally:
        await pool.close()


async def _pods(server: RealServer) -> list[str]:
    _, told = await Client(server.url, ADMIN)("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
    return [pod["metadata"]["name"] for pod in told["items"]]


def test_sandboxes(use, base):
    async def body(pool, server) -> None:
        first = await pool.acquire(SandboxSpec(base, read_only={"/tests": base}))
        script = "cat hello.txt /tests/hello.txt; wc -c; echo e >&2; exit 3"
        result = await first.exec(["sh", "-c", script], timeout_s=60, stdin=b"x" * 100_000)
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"hellohello100000\n", b"e\n")
        timed = await first.exec(["sh", "-c", "echo before; sleep 1000"], timeout_s=0.5)
        assert (timed.outcome, timed.stdout) == ("timed_out", b"before\n")
        await first.write("deep/file", b"data" * 50_000)
        assert await first.read("deep/file") == b"data" * 50_000
        await first.close()
        again = await pool.acquire(SandboxSpec(base, read_only={"/tests": base}))
        assert again.pod is first.pod
        assert (await again.exec(["ls", "deep"], timeout_s=60)).stdout == b"run.sh\n"
        assert pool.api.writes == 1

    use(body)


def test_the_controller_may_do_what_it_needs_and_nothing_more(use, server):
    async def body(pool, server) -> None:
        controller = Client(server.url, CONTROLLER)
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        for method, path in [
            ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
            ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps"),
            ("DELETE", pods),
            ("GET", f"{pods}/any"),
            ("GET", f"{pods}/any/log"),
            ("PATCH", f"{pods}/any"),
            ("PUT", f"{pods}/any/status"),
            ("POST", f"{pods}/any/attach"),
            ("POST", f"{pods}/any/portforward"),
            ("POST", f"{pods}/any/eviction"),
            ("GET", "/api/v1/namespaces/default/pods"),
            ("POST", "/api/v1/namespaces/default/pods"),
            ("GET", "/api/v1/pods"),
            ("GET", "/api/v1/nodes"),
            ("GET", "/api/v1/namespaces"),
            ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"),
            ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gagar-controller/token"),
            ("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"),
            ("DELETE", f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies/deny-all"),
        ]:
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            status, told = await controller(method, path, {}, kind)
            assert (status, told["reason"]) == (403, "Forbidden"), (method, path)
        status, _ = await controller("GET", pods)
        assert status == 200

    use(body)


def test_a_foreign_account_is_told_what_it_may_not(server, tmp_path):
    async def main() -> None:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig(CONTROLLER))
        cluster = await configuration(str(tmp_path / "kubeconfig"))
        with pytest.raises(SandboxUnavailable, match='cannot list resource "pods" in API group "" in the namespace "default"'):
            await open_pool(replace(OURS, namespace="default"), SETTINGS, cluster)

    asyncio.run(main())


def test_a_full_quota(use, base):
    """The status of a quota, from which the API server judges, is filled in here for want of a controller manager."""

    async def body(pool, server) -> None:
        admin = Client(server.url, ADMIN)
        path = f"{PLACES['ResourceQuota']}/sandboxes/status"
        status = {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}
        await admin("PATCH", path, status, "application/merge-patch+json")
        try:
            first = await pool.acquire(SandboxSpec(base))
            with pytest.raises(SandboxLost, match="exceeded quota: sandboxes"):
                await pool.acquire(SandboxSpec(base))
            assert (await first.exec(["true"], timeout_s=60)).exit_code == 0
        finally:
            await admin("PATCH", path, {"status": {"hard": None, "used": None}}, "application/merge-patch+json")

    use(body, replace(SETTINGS, retry_s=2.0))


def test_the_api_server_is_killed_in_the_middle(use, base):
    async def body(pool, server) -> None:
        sandboxes = await asyncio.gather(*(pool.acquire(SandboxSpec(base)) for _ in range(4)))
        command = ["sh", "-c", "echo x >> runs; sleep 3; wc -l < runs"]
        running = [asyncio.create_task(sandbox.exec(command, timeout_s=120)) for sandbox in sandboxes]
        waiting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        await asyncio.sleep(1)
        server.kill("kube-apiserver")
        await asyncio.sleep(3)
        await asyncio.to_thread(server.start_api)
        assert [(await task).stdout for task in running] == [b"1\n"] * 4
        late = await waiting
        assert (await late.exec(["cat", "hello.txt"], timeout_s=60)).stdout == b"hello"

    use(body)


def test_the_scheduler_that_leads_is_killed(use, base):
    async def body(pool, server) -> None:
        server.kill("kube-scheduler")
        waiting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        await asyncio.sleep(1)
        server.start_scheduler()
        assert (await (await waiting).exec(["true"], timeout_s=60)).exit_code == 0

    use(body)


def test_a_thousand_pods(use, base):
    async def body(pool, server) -> None:
        shape = Shape.of(SandboxSpec(base), OURS.image)
        names = [f"gagar-{shape.id}-{index}" for index in range(1000)]
        started = time.monotonic()
        for name in names:
            pool._watch.expect(name)
        await asyncio.gather(*(pool._source.create(shape, name) for name in names))
        created = time.monotonic()
        states = await asyncio.gather(*(until_ready(pool._watch, name, SETTINGS) for name in names))
        print(f"1000 pods: created in {created - started:.1f} s, ready after {time.monotonic() - started:.1f} s")
        assert {state.phase for state in states} == {"ready"}
        assert len(await _pods(server)) == 1000

    use(body)
