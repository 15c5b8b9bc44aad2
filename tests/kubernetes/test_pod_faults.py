"""What goes wrong on clusters, one fault after the other."""

import asyncio
from dataclasses import replace

import pytest
from fake_api import Fault
from pooled import PATIENT

from gagar_sandbox import SandboxLost, SandboxSpec, SandboxUnavailable
from gagar_sandbox.kubernetes import api, live
from gagar_sandbox.kubernetes import sandbox as sandbox_module
from gagar_sandbox.kubernetes.backoff import Backoff
from gagar_sandbox.kubernetes.starting import until_ready

COUNTING = ["sh", "-c", "echo x >> runs; cat; wc -l < runs"]


@pytest.mark.parametrize(
    "faults",
    [
        [
            Fault("create", 429, "TooManyRequests", retry_after=0),
            Fault("create", 500, "InternalError"),
            Fault("create", 503, "ServiceUnavailable"),
            Fault("create", 409, "Conflict"),
        ],
        [
            Fault("exec", 500, "InternalError", times=2),
            Fault("exec", 503, "ServiceUnavailable", retry_after=0),
            Fault("exec", 403, "Forbidden"),
        ],
        [
            Fault("watch", 429, "TooManyRequests", retry_after=0),
            Fault("watch", 410, "Expired"),
            Fault("list", 500, "InternalError"),
            Fault("list", 401, "Unauthorized"),
        ],
        [Fault("delete", 500, "InternalError"), Fault("delete", 403, "Forbidden")],
    ],
    ids=lambda faults: faults[0].verb,
)
def test_passing_errors_are_borne(use, base, faults):
    async def body(pool, cluster) -> None:
        for _ in range(2):  # all has been allowed once before it is refused
            sandbox = await pool.acquire(SandboxSpec(base))
            result = await sandbox.exec(COUNTING, timeout_s=60, stdin=b"hello ")
            assert result.stdout == b"hello 1\n"
            sandbox.lost = True  # so that its pod is deleted
            await sandbox.close()
            if not cluster.faults:
                cluster.faults += [replace(fault) for fault in faults]
                await cluster.cut_watches()
        assert [fault.times for fault in cluster.faults] == [0] * len(faults)

    use(body, settings=replace(PATIENT, spare=0))


def test_retry_after_is_heeded(use, base, monkeypatch):
    naps = []
    monkeypatch.setattr(Backoff, "next_s", lambda self, at_least_s=0.0: naps.append(at_least_s) or 0.0)

    async def body(pool, cluster) -> None:
        cluster.faults.append(Fault("create", 429, "TooManyRequests", retry_after=7))
        await pool.acquire(SandboxSpec(base))
        assert 7.0 in naps

    use(body)
    monkeypatch.undo()
    assert all(7.0 <= (Backoff(100.0).next_s(7.0) or 0.0) <= 7.1 for _ in range(20))
    assert Backoff(5.0).next_s(7.0) is None


def test_a_create_whose_answer_was_lost_is_not_a_second_pod(use, base):
    async def body(pool, cluster) -> None:
        name = "gagar-0123456789-abcdef"
        thing = {"kind": "Pod", "metadata": {"name": name, "labels": {}}}
        cluster.objects["pods", name] = thing
        await pool.api.create({"apiVersion": "v1", **thing})
        assert list(cluster.pods()) == [name]
        del cluster.objects["pods", name]

    use(body)


@pytest.mark.parametrize(("status", "reason"), [(401, "Unauthorized"), (403, "Forbidden"), (422, "Invalid"), (404, "NotFound")])
def test_what_the_server_refuses_for_good_is_said_at_once(use, base, status, reason):
    async def body(pool, cluster) -> None:
        cluster.faults.append(Fault("create", status, reason, times=100))
        with pytest.raises(SandboxUnavailable, match=f"{status} {reason}"):
            await pool.acquire(SandboxSpec(base))
        assert cluster.requests["create"] == 1

    use(body)


@pytest.mark.parametrize("cut", [0, 40], ids=lambda cut: f"after {cut} bytes")
def test_a_broken_connection_neither_loses_nor_repeats_a_command(use, base, cut):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        cluster.cut_execs += [cut] * 2
        result = await sandbox.exec(COUNTING, timeout_s=60, stdin=b"y" * 300)
        assert result.stdout == b"y" * 300 + b"1\n"
        cluster.cut_execs += [0, 0]
        await sandbox.write("file", b"data")
        assert await sandbox.read("file") == b"data"
        cluster.cut_execs += [0, 100]
        await sandbox.close()
        again = await pool.acquire(SandboxSpec(base))
        assert (await again.exec(["cat", "hello.txt"], timeout_s=60)).stdout == b"hello"

    use(body)


def test_connections_break_while_a_command_runs(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        heard = []
        running = asyncio.create_task(
            sandbox.exec(
                ["sh", "-c", "echo x >> runs; echo one; until [ -e go ]; do sleep .01; done; wc -l < runs"],
                timeout_s=60,
                on_output=lambda stream, data: heard.append(data),
            )
        )
        while not heard:
            await asyncio.sleep(0.01)
        await cluster.cut_watches()
        cluster.containers[sandbox.pod.pod].file("scratch", "work/go").touch()
        assert (await running).stdout == b"one\n1\n"

    use(body)


def test_a_command_that_cannot_be_cancelled_costs_the_pod(use, base, monkeypatch):
    monkeypatch.setattr(sandbox_module, "STOP_S", 0.3)

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=2000))
        await asyncio.sleep(0.1)
        cluster.faults.append(Fault("exec", 500, "InternalError", times=1000))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(SandboxLost, match="is lost"):
            await sandbox.exec(["true"], timeout_s=30)
        cluster.faults.clear()
        await sandbox.close()
        assert sandbox.pod.pod not in cluster.pods()

    use(body)


def test_evicted(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=2000))
        await asyncio.sleep(0.2)
        await cluster.evict(sandbox.pod.pod)
        with pytest.raises(SandboxLost, match="Evicted, The node was low"):
            await running
        await sandbox.close()
        assert cluster.pods().keys().isdisjoint({sandbox.pod.pod})

    use(body)


def test_node_lost(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        await cluster.lose_node(sandbox.pod.pod)
        with pytest.raises(SandboxLost, match="NodeLost, DeletionByTaintManager"):
            await sandbox.exec(["true"], timeout_s=30)

    use(body)


def test_a_container_that_has_gone_though_nobody_says_so(use, base, monkeypatch):
    monkeypatch.setattr(live, "REASON_S", 0.1)
    monkeypatch.setattr(live, "FAILURES", 2)

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        cluster.containers[sandbox.pod.pod].kill("main")
        with pytest.raises(SandboxLost, match="the program in the pod ended"):
            await sandbox.exec(["true"], timeout_s=2000)

    use(body)


def test_a_pod_that_ends_while_idle_is_not_given_out(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        name = sandbox.pod.pod
        await sandbox.close()
        await cluster.evict(name)
        again = await pool.acquire(SandboxSpec(base))
        assert again.pod.pod != name
        assert (await again.exec(["true"], timeout_s=60)).exit_code == 0

    use(body)


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        ({"reason": "InvalidImageName", "message": "no such name"}, "InvalidImageName, no such name"),
        ({"reason": "CreateContainerConfigError", "message": "no secret"}, "CreateContainerConfigError"),
        ({"reason": "ErrImagePull", "message": "not found"}, "ImagePull, ErrImagePull not found for"),
        ({"reason": "ImagePullBackOff"}, "ImagePull, ImagePullBackOff for"),
        ("Unschedulable", "Unschedulable, 0/3 nodes are available for"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["reason"],
)
def test_a_pod_that_will_not_start_is_given_up_with_its_reason(use, base, fate, told):
    async def body(pool, cluster) -> None:
        cluster.fates["registry.test/bad:1"] = fate
        with pytest.raises(SandboxLost, match=told):
            await pool.acquire(SandboxSpec(base, image="registry.test/bad:1"))
        sandbox = await pool.acquire(SandboxSpec(base))
        assert (await sandbox.exec(["true"], timeout_s=60)).exit_code == 0

    use(body, settings=replace(PATIENT, pull_s=0.3, unschedulable_s=0.3))


def test_a_pod_that_starts_for_ever_is_given_up(use, base):
    async def body(pool, cluster) -> None:
        cluster.fates["registry.test/bad:1"] = {"reason": "ContainerCreating"}
        waiting = asyncio.create_task(pool.acquire(SandboxSpec(base, image="registry.test/bad:1")))
        while not pool._watch._states or None in pool._watch._states.values():
            await asyncio.sleep(0.01)
        [name] = pool._watch._states
        with pytest.raises(SandboxLost, match="starting for"):
            await until_ready(pool._watch, name, replace(PATIENT, start_s=0.1))
        waiting.cancel()

    use(body, settings=replace(PATIENT, spare=0))


def test_events_too_old_and_late_and_a_server_whose_clock_is_wrong(use, base):
    async def body(pool, cluster) -> None:
        for _ in range(2):
            cluster.forget_events()
            await cluster.cut_watches()
            sandbox = await pool.acquire(SandboxSpec(base))
            assert (await sandbox.exec(["true"], timeout_s=60)).exit_code == 0
            sandbox.lost = True
            await sandbox.close()

    use(body, skew_s=-30 * 86400.0, watch_delay_s=0.1)


def test_a_full_quota_is_waited_out(use, base):
    async def body(pool, cluster) -> None:
        first = await pool.acquire(SandboxSpec(base))
        second = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        await asyncio.sleep(0.3)
        assert not second.done()
        await first.close()
        assert (await (await second).exec(["true"], timeout_s=60)).exit_code == 0

    use(body, quota=1, settings=replace(PATIENT, spare=0))


def test_what_waits_for_a_full_quota_lets_deletions_pass(use, base, monkeypatch):
    monkeypatch.setattr(api, "WRITERS", 1)

    async def body(pool, cluster) -> None:
        first = await pool.acquire(SandboxSpec(base))
        second = asyncio.create_task(pool.acquire(SandboxSpec(base, workdir="/other")))
        while not pool.api.retries:
            await asyncio.sleep(0.01)
        first.lost = True  # so that its pod is deleted
        await first.close()
        assert (await (await second).exec(["true"], timeout_s=60)).exit_code == 0

    use(body, quota=1, settings=replace(PATIENT, spare=0, retry_s=600.0))


def test_a_pool_that_closes_tries_no_creation_again(use, base):
    async def body(pool, cluster) -> None:
        waiting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        while not pool.api.retries:
            await asyncio.sleep(0.01)
        tried = pool.api.counts["create"]
        await pool.close()
        assert pool.api.counts["create"] <= tried + 1
        with pytest.raises(SandboxLost):
            await waiting

    use(body, quota=0, settings=replace(PATIENT, spare=0))


def test_a_server_that_stays_away_is_given_up(use, base):
    async def body(pool, cluster) -> None:
        cluster.faults.append(Fault("create", 500, "InternalError", times=1000))
        with pytest.raises(SandboxLost, match="500 InternalError"):
            await pool.acquire(SandboxSpec(base))

    use(body, settings=replace(PATIENT, retry_s=0.5))
