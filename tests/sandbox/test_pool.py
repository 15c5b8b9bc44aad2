import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gagar_sandbox import LocalPool, SandboxLost, SandboxSpec
from gagar_sandbox.shelf import ROOM
from gagar_sandbox.templates import IDLE


def test_no_more_live_at_once_than_allowed_and_none_sees_another(base: Path):
    async def main() -> None:
        pool = LocalPool(concurrency=4)
        live = most = 0

        async def one(number: int) -> bytes:
            nonlocal live, most
            sandbox = await pool.acquire(SandboxSpec(base))
            live, most = live + 1, max(most, live + 1)
            script = f"cat /tmp/* hello.txt 2>/dev/null; echo {number} | tee /tmp/mine > hello.txt; sleep 0.05; cat hello.txt"
            result = await sandbox.exec(["sh", "-c", script], timeout_s=60)
            live -= 1
            await sandbox.close()
            return result.stdout

        try:
            outputs = await asyncio.gather(*(one(number) for number in range(32)))
        finally:
            await pool.close()
        assert most <= 4
        assert outputs == [b"hello%d\n" % number for number in range(32)]

    asyncio.run(main())
    assert (base / "hello.txt").read_text() == "hello"


def test_an_acquire_waits_for_a_place(base: Path):
    async def main() -> None:
        pool = LocalPool(concurrency=1)
        try:
            first = await pool.acquire(SandboxSpec(base))
            second = asyncio.create_task(pool.acquire(SandboxSpec(base)))
            assert await first.read("hello.txt") == b"hello"
            assert not second.done()
            await first.close()
            assert await (await second).read("hello.txt") == b"hello"
        finally:
            await pool.close()

    asyncio.run(main())


def test_close_kills_what_runs_and_refuses_those_who_wait(base: Path, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(concurrency=1)
        sandbox = await pool.acquire(SandboxSpec(base))
        running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=1000))
        waiting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        await asyncio.sleep(0.1)
        await pool.close()
        for task in (running, waiting):
            with pytest.raises(SandboxLost):
                await task
        with pytest.raises(SandboxLost):
            await pool.acquire(SandboxSpec(base))

    asyncio.run(main())
    assert left_behind() == []


def test_close_does_not_forget_a_sandbox_that_is_being_started(base: Path, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool()
        starting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(SandboxLost):
            await starting

    asyncio.run(main())
    assert left_behind() == []


def test_a_cancelled_acquire_leaves_its_place_to_others(base: Path, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(concurrency=1)
        try:
            for turns, delay in [*((turns, 0) for turns in range(8)), (0, 0.001), (0, 0.005), (0, 0.01), (0, 0.02)]:
                starting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await asyncio.sleep(delay)
                starting.cancel()
                with suppress(asyncio.CancelledError):
                    await (await starting).close()  # it had come before
            sandbox = await asyncio.wait_for(pool.acquire(SandboxSpec(base)), 60)
            assert await sandbox.read("hello.txt") == b"hello"
        finally:
            await pool.close()

    asyncio.run(main())
    assert left_behind() == []


def test_specs_that_cannot_be_mounted(base: Path):
    async def main() -> None:
        pool = LocalPool()
        try:
            for workdir in ("relative", "/", "/app/../usr", "/usr/app", "/proc"):
                with pytest.raises(ValueError, match=workdir):
                    await pool.acquire(SandboxSpec(base, workdir=workdir))
            with pytest.raises(ValueError, match=r"gagar sandbox import IMAGE\.tar --name debian:12"):
                await pool.acquire(SandboxSpec(base, image="debian:12"))
            with pytest.raises(ValueError, match="base: "):
                await pool.acquire(SandboxSpec(None))
            with pytest.raises(FileNotFoundError, match="missing"):
                await pool.acquire(SandboxSpec(base / "missing"))
            with pytest.raises(FileNotFoundError, match="missing"):
                await pool.acquire(SandboxSpec(base, read_only={"/tests": base / "missing"}))
        finally:
            await pool.close()

    asyncio.run(main())
    with pytest.raises(ValueError, match="concurrency is 0"):
        LocalPool(concurrency=0)


def test_pools_of_one_process_do_not_get_in_each_others_way(base: Path):
    async def main() -> None:
        pools = [LocalPool(concurrency=3), LocalPool(concurrency=3)]
        sandboxes = []
        try:
            for _ in range(3):
                sandboxes += [await pool.acquire(SandboxSpec(base)) for pool in pools]
            results = await asyncio.gather(*(sandbox.exec(["true"], timeout_s=60) for sandbox in sandboxes))
            assert [(result.outcome, result.exit_code) for result in results] == [("exited", 0)] * 6
        finally:
            await asyncio.gather(*(pool.close() for pool in pools))

    asyncio.run(main())


def test_a_base_that_was_replaced_is_seen_anew(base: Path):
    async def main() -> None:
        pool = LocalPool(1)
        try:
            for text in ("one", "two"):
                base.rename(base.with_name(f"before {text}"))
                base.mkdir()
                (base / "hello.txt").write_text(text)
                sandbox = await pool.acquire(SandboxSpec(base))
                assert await sandbox.read("hello.txt") == text.encode()
                await sandbox.close()
        finally:
            await pool.close()

    asyncio.run(main())


def test_more_bases_than_templates_are_kept(base: Path, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(1)
        try:
            for number in range(IDLE + ROOM + 3):
                folder = base / str(number)
                folder.mkdir()
                await (await pool.acquire(SandboxSpec(folder))).close()
            assert len(left_behind()) <= 2 * (IDLE + ROOM + 1) + ROOM  # bubblewrap waits beside each template
        finally:
            await pool.close()

    asyncio.run(main())
    assert left_behind() == []


def test_a_template_that_has_died_is_replaced(base: Path, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(1)
        try:
            await (await pool.acquire(SandboxSpec(base))).close()
            for process in left_behind():
                process.kill()
            await asyncio.to_thread(psutil.wait_procs, left_behind(), 0.1)
            assert await (await pool.acquire(SandboxSpec(base))).read("hello.txt") == b"hello"
        finally:
            await pool.close()

    asyncio.run(main())
    assert left_behind() == []


def test_who_holds_a_dead_template_gives_back_that_one_and_not_its_successor(base: Path):
    async def main() -> None:
        pool = LocalPool(2)
        try:
            first = await pool.acquire(SandboxSpec(base))
            [dead] = pool._templates._held.values()
            dead.template._process.kill()
            assert await dead.template._process.wait(60)
            await pool.acquire(SandboxSpec(base))
            await first.close()
            assert [(held is dead, held.users) for held in pool._templates._held.values()] == [(False, 1)]
        finally:
            await pool.close()

    asyncio.run(main())


def test_an_acquire_that_is_cancelled_at_its_very_end_leaves_its_place_too(base: Path, monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        pool = LocalPool(concurrency=1)
        reached, trim = asyncio.Event(), pool._templates.trim

        async def reaching() -> None:
            reached.set()
            await asyncio.sleep(0)
            await trim()

        monkeypatch.setattr(pool._templates, "trim", reaching)
        try:
            starting = asyncio.create_task(pool.acquire(SandboxSpec(base)))
            await reached.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            sandbox = await asyncio.wait_for(pool.acquire(SandboxSpec(base)), 60)
            assert await sandbox.read("hello.txt") == b"hello"
        finally:
            await pool.close()

    asyncio.run(main())


def test_a_pool_may_be_closed_by_many_at_once_and_by_who_gives_up(base: Path, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(concurrency=2)
        sandboxes = [await pool.acquire(SandboxSpec(base)) for _ in range(2)]
        first = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(asyncio.gather(*(pool.close() for _ in range(3)), *(one.close() for one in sandboxes)), 60)
        with pytest.raises(SandboxLost):
            await pool.acquire(SandboxSpec(base))

    asyncio.run(main())
    assert left_behind() == []
