"""Which pods there are, and how many."""

import asyncio
import os
from dataclasses import replace

import pytest
from fake_api import FakeCluster
from kubernetes_asyncio.client import Configuration
from pooled import PATIENT, PODS

from gagar_sandbox import SandboxLost, SandboxSpec, SandboxUnavailable
from gagar_sandbox.kubernetes import api, configuration, open_pool
from gagar_sandbox.kubernetes.manifest import WORK, labels, selector

ONE = replace(PATIENT, spare=0)


def test_a_pod_is_used_again_and_shows_nothing_of_its_last_use(use, base):
    async def body(pool, cluster) -> None:
        first = await pool.acquire(SandboxSpec(base))
        script = "echo x | tee left /tmp/left /var/tmp/left /logs/left /dev/shm/left; rm hello.txt; mkdir -p a/b; chmod 0 a/b"
        assert (await first.exec(["sh", "-c", script], timeout_s=60)).exit_code == 0
        await first.close()
        second = await pool.acquire(SandboxSpec(base))
        assert second.pod is first.pod
        seen = await second.exec(["sh", "-c", "find . /tmp /var/tmp /logs /dev/shm -type f | sort; cat hello.txt"], timeout_s=60)
        assert seen.stdout == b"./deep/run.sh\n./hello.txt\nhello"
        assert (pool.counts["started"], pool.counts["reused"], pool.counts["quarantined"]) == (1, 1, 0)

    use(body, settings=ONE)


@pytest.mark.parametrize("planted", ["scratch/tmp/planted", f"scratch/{WORK}/planted/deep"])
def test_a_pod_that_is_not_clean_is_deleted_and_another_taken(use, base, planted):
    async def body(pool, cluster) -> None:
        first = await pool.acquire(SandboxSpec(base))
        volume, _, path = planted.partition("/")
        file = cluster.containers[first.pod.pod].file(volume, path)
        if "deep" in planted:
            if os.geteuid() != 0:
                pytest.skip("only root can give a file to another user")
            file.parent.mkdir(mode=0o700)
            file.touch()
            os.chown(file.parent, 12345, 12345)  # whom the pod does not know, so that nobody there can remove it
            await first.close()
            assert cluster.pods() == {}
        else:
            await first.close()
            file.touch()
        second = await pool.acquire(SandboxSpec(base))
        assert second.pod is not first.pod
        assert pool.counts["quarantined"] == 1
        assert (await second.exec(["cat", "hello.txt"], timeout_s=60)).stdout == b"hello"

    use(body, settings=ONE)


@pytest.mark.parametrize(
    "script",
    [
        "import os\nfor _ in range(600): os.mkdir('d'); os.chdir('d')",
        "import os\nfor i in range(999): open(f'/tmp/{i}', 'w').close()\nos.mkfifo('p'); os.mkdir('c', 0); os.symlink('/', 'r')",
        "import os\nfor n in ('/scratch', '/kept', '/inputs'): assert not os.path.exists(n)\nos.symlink('/gagar', 's' * 255)",
    ],
    ids=["deep folders", "many files, a pipe, a closed folder, a link to the root", "names"],
)
def test_whatever_a_command_leaves_the_next_sandbox_is_as_new(use, base, script):
    async def body(pool, cluster) -> None:
        first = await pool.acquire(SandboxSpec(base))
        left = await first.exec(["python3", "-c", script], timeout_s=60)
        assert left.exit_code == 0, left.stderr
        await first.close()
        second = await pool.acquire(SandboxSpec(base))
        seen = await second.exec(["sh", "-c", "find . /tmp /dev/shm | sort"], timeout_s=60)
        assert seen.stdout.split() == b". ./deep ./deep/run.sh ./hello.txt ./link /dev/shm /tmp".split()

    use(body, settings=ONE)


def test_a_pod_serves_so_many_sandboxes_and_no_more(use, base):
    async def body(pool, cluster) -> None:
        names = []
        for _ in range(5):
            sandbox = await pool.acquire(SandboxSpec(base))
            names.append(sandbox.pod.pod)
            await sandbox.close()
        assert [names.count(name) for name in dict.fromkeys(names)] == [2, 2, 1]

    use(body, settings=replace(ONE, uses=2))


def test_a_pod_with_not_long_to_live_serves_nobody_more(use, base):
    async def body(pool, cluster) -> None:
        first = await pool.acquire(SandboxSpec(base))
        first.pod.begun -= PODS.lifetime_s / 2
        await first.close()
        assert (await pool.acquire(SandboxSpec(base))).pod is not first.pod
        assert pool.counts["quarantined"] == 0

    use(body, settings=ONE)


def test_writes_of_sessions_in_steady_state(use, base):
    async def body(pool, cluster) -> None:
        async def session() -> None:
            sandbox = await pool.acquire(SandboxSpec(base))
            await sandbox.exec(["true"], timeout_s=60)
            await sandbox.close()

        for _ in range(4):
            await asyncio.gather(*(session() for _ in range(4)))
        assert pool.api.writes <= 2 * 5  # sixteen sessions, in four pods and a spare
        assert cluster.most_pods <= 5

    use(body)


def test_pods_are_never_more_than_demand_and_spares_nor_than_may_be(use, base):
    async def body(pool, cluster) -> None:
        held = await asyncio.gather(*(pool.acquire(SandboxSpec(base)) for _ in range(6)))
        assert cluster.most_pods <= 7
        late = [asyncio.create_task(pool.acquire(SandboxSpec(base))) for _ in range(10)]
        await asyncio.sleep(0.5)
        assert cluster.most_pods <= 8
        for sandbox in held:
            await sandbox.close()
        for task in late:
            await (await task).close()
        assert cluster.most_pods <= 8

    use(body, settings=replace(PATIENT, concurrency=8), start_s=0.05)


def test_an_idle_pod_makes_room_for_another_kind_and_ends_when_nobody_comes(use, base):
    async def body(pool, cluster) -> None:
        await (await pool.acquire(SandboxSpec(base))).close()
        other = await pool.acquire(SandboxSpec(base, workdir="/other"))
        assert cluster.most_pods == 1
        await other.close()
        async with asyncio.timeout(60):
            while cluster.pods():
                await asyncio.sleep(0.05)

    use(body, settings=replace(ONE, concurrency=1, idle_s=0.5))


def test_who_leaves_while_waiting_takes_nothing_along(use, base):
    async def body(pool, cluster) -> None:
        for delay in (0, 0, 0.01, 0.05, 0.2, 0.3):
            waiting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
            await asyncio.sleep(delay)
            waiting.cancel()
            await asyncio.wait({waiting})
            if not waiting.cancelled():
                await waiting.result().close()
        sandboxes = [await pool.acquire(SandboxSpec(base)) for _ in range(2)]
        assert [(await sandbox.exec(["true"], timeout_s=60)).exit_code for sandbox in sandboxes] == [0, 0]
        assert cluster.most_pods <= 2

    use(body, settings=replace(ONE, concurrency=2))


def test_closing_ends_sandboxes_and_those_who_wait(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=2000))
        waiting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        await asyncio.sleep(0.2)
        await pool.close()
        for task in (running, waiting):
            with pytest.raises(SandboxLost):
                await task
        with pytest.raises(SandboxLost, match="the pool is closed"):
            await pool.acquire(SandboxSpec(base))
        assert cluster.pods() == {}

    use(body, settings=replace(ONE, concurrency=1))


@pytest.mark.parametrize("delay", [0, 0.05, 0.1, 0.2, 0.4])
def test_a_pool_closed_at_any_moment_tells_all_who_use_it_the_same(use, base, delay):
    async def body(pool, cluster) -> None:
        async def session() -> None:
            while True:
                sandbox = await pool.acquire(SandboxSpec(base))
                await sandbox.exec(["true"], timeout_s=60)
                await sandbox.close()

        using = [asyncio.create_task(session()) for _ in range(6)]
        await asyncio.sleep(delay)
        await pool.close()
        ended = await asyncio.wait_for(asyncio.gather(*using, return_exceptions=True), 60)
        assert [type(error) for error in ended if not isinstance(error, SandboxLost)] == []

    use(body, settings=replace(ONE, concurrency=3))


def test_a_pool_may_be_closed_by_many_at_once_and_by_who_gives_up(use, base):
    async def body(pool, cluster) -> None:
        await asyncio.gather(*(pool.acquire(SandboxSpec(base)) for _ in range(2)))
        first = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(pool.close(), pool.close())
        assert cluster.pods() == {}
        assert pool._watch._states == {}

    use(body)


def test_execs_that_begin_at_once_are_bounded(use, base, monkeypatch):
    monkeypatch.setattr(api, "HANDSHAKES", 2)

    async def body(pool, cluster) -> None:
        sandboxes = await asyncio.gather(*(pool.acquire(SandboxSpec(base)) for _ in range(5)))
        await asyncio.gather(*(sandbox.exec(["true"], timeout_s=60) for sandbox in sandboxes))
        assert cluster.most_opening == 2

    use(body, settings=ONE)


def test_a_wait_for_a_pod_has_an_end(use, base):
    async def body(pool, cluster) -> None:
        await pool.acquire(SandboxSpec(base))
        with pytest.raises(SandboxLost, match="no pod has come free"):
            await pool.acquire(SandboxSpec(base))

    use(body, settings=replace(ONE, concurrency=1, acquire_s=0.3))


def test_a_new_process_removes_what_its_run_left_and_nothing_else(tmp_path, image_init, base):
    async def main() -> None:
        cluster = FakeCluster(tmp_path / "pods", image_init)
        async with cluster.serve() as address:
            mine, other = [await open_pool(replace(PODS, run=run), ONE, Configuration(host=address)) for run in ("mine", "other")]
            await mine.acquire(SandboxSpec(base))
            theirs = await other.acquire(SandboxSpec(base))
            await mine.api.close()  # as where the process is killed
            again = await open_pool(replace(PODS, run="mine"), ONE, Configuration(host=address))
            assert list(cluster.pods()) == [theirs.pod.pod]
            assert (await theirs.exec(["true"], timeout_s=60)).exit_code == 0
            await again.close()
            await other.close()
            assert cluster.pods() == {}

    asyncio.run(main())


def test_long_lists_come_in_pages(tmp_path, image_init, monkeypatch):
    monkeypatch.setattr(api, "PAGE", 3)

    async def main() -> None:
        cluster = FakeCluster(tmp_path / "pods", image_init)
        names = [f"pod-{index}" for index in range(7)]
        for name in names:
            cluster.objects["pods", name] = {"metadata": {"name": name, "labels": labels(PODS)}}
        async with cluster.serve() as address:
            asking = api.Api(Configuration(host=address), PODS.namespace, 10.0)
            found, _ = await asking.find("Pod", "v1", selector(PODS))
            assert [thing["metadata"]["name"] for thing in found] == names
            assert cluster.requests["list"] == 3
            await asking.close()

    asyncio.run(main())


def test_clusters_that_cannot_be_used(tmp_path):
    async def main() -> None:
        with pytest.raises(SandboxUnavailable, match="name a kubeconfig"):
            await configuration(str(tmp_path / "missing"))
        with pytest.raises(SandboxUnavailable, match="did not answer"):
            await open_pool(PODS, replace(PATIENT, retry_s=0.2), Configuration(host="http://127.0.0.1:9"))

    asyncio.run(main())
    with pytest.raises(ValueError, match="concurrency is 0"):
        replace(PATIENT, concurrency=0)
