"""What a command leaves is gone after a reset, and what was snapshotted is there again; with overlays, and with copies."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gagar_sandbox import Limits, LocalPool, SandboxLost, SandboxSpec
from gagar_sandbox.local import LocalSandbox

Body = Callable[[LocalSandbox], Awaitable[None]]
SEE = """cat hello.txt; ls -A . folder /tmp /var/tmp /logs /dev/shm
ipcs -m | wc -l; set -- /proc/[0-9]*; echo $#; cat /proc/mounts | wc -l"""


@pytest.fixture(params=["overlay", "copy"])
def with_files(request: pytest.FixtureRequest, base: Path) -> Callable[..., None]:
    (base / "folder").mkdir()
    (base / "folder" / "file").write_text("x")

    def run(body: Body, limits: Limits | None = None) -> None:
        async def main() -> None:
            pool = LocalPool(1, overlay=request.param == "overlay")
            try:
                await body(await pool.acquire(SandboxSpec(base, limits=limits or Limits())))
            finally:
                await pool.close()

        asyncio.run(main())
        assert (base / "hello.txt").read_text() == "hello"

    return run


async def seen(sandbox: LocalSandbox) -> bytes:
    result = await sandbox.exec(["sh", "-c", SEE], timeout_s=60)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_reset_leaves_nothing_of_what_was_done(with_files):
    async def body(sandbox: LocalSandbox) -> None:
        before = await seen(sandbox)
        for _ in range(3):
            spoil = (
                "echo changed > hello.txt; rm -r folder; for at in . /tmp /var/tmp /logs /dev/shm; do mkdir -m 0 $at/left; done"
            )
            spoil += "; ln -s / link; mkfifo /tmp/fifo; ipcmk -M 4096 >/dev/null; chmod 0 ."
            assert (await sandbox.exec(["sh", "-c", spoil], timeout_s=60)).exit_code == 0
            await sandbox.reset()
            assert await seen(sandbox) == before

    with_files(body)


def test_a_reset_goes_back_to_the_last_snapshot(with_files):
    async def body(sandbox: LocalSandbox) -> None:
        assert (
            await sandbox.exec(["sh", "-c", "echo one > hello.txt; rm -r folder; echo 1 > /tmp/t"], timeout_s=60)
        ).exit_code == 0
        await sandbox.snapshot()
        assert await sandbox.read("hello.txt") == b"one\n"
        await sandbox.exec(["sh", "-c", "mkdir folder; echo two > hello.txt; echo 2 > /tmp/t; mkfifo f"], timeout_s=60)
        await sandbox.snapshot()
        await sandbox.exec(["sh", "-c", "rm -r * /tmp/t"], timeout_s=60)
        for _ in range(2):
            await sandbox.reset()
            result = await sandbox.exec(["sh", "-c", "cat hello.txt /tmp/t; ls; ls -A folder; echo z > z"], timeout_s=60)
            assert result.stdout == b"two\n2\nf\nfolder\nhello.txt\n"

    with_files(body)


def test_the_disk_is_free_again_and_bounded_still(with_files):
    async def body(sandbox: LocalSandbox) -> None:
        fill = "head -c 7000000 /dev/zero > /tmp/big"
        for _ in range(3):
            assert (await sandbox.exec(["sh", "-c", fill], timeout_s=60)).exit_code == 0
            await sandbox.reset()
        many = "i=0; while echo > /tmp/$i; do i=$((i+1)); done 2>/dev/null; [ $i -lt 8192 ]"
        assert (await sandbox.exec(["sh", "-c", many], timeout_s=60)).exit_code == 0
        await sandbox.reset()
        await sandbox.write("/tmp/small", b"x")

    with_files(body, Limits(disk_mb=8, file_size_mb=16))


def test_snapshots_count_on_the_disk(base):
    async def main() -> None:
        pool = LocalPool(1)
        try:
            sandbox = await pool.acquire(SandboxSpec(base, limits=Limits(disk_mb=8)))
            await sandbox.write("/tmp/one", b"x" * 5_000_000)
            await sandbox.snapshot()
            with pytest.raises(OSError):
                await sandbox.write("/tmp/two", b"x" * 5_000_000)
        finally:
            await pool.close()

    asyncio.run(main())


def test_limits_and_walls_hold_after_a_reset(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.reset()
        grow = "kept = []\nwhile True: kept.append(bytearray(1 << 20))"
        assert (await sandbox.exec(["python3", "-c", grow], timeout_s=60)).outcome == "out_of_memory"
        status = (await sandbox.exec(["cat", "/proc/self/status"], timeout_s=60)).stdout
        assert b"CapBnd:\t0000000000000000" in status and b"Seccomp:\t2" in status
        assert (await sandbox.exec(["touch", "/usr/x"], timeout_s=60)).exit_code == 1

    use(body, SandboxSpec(base, limits=Limits(memory_mb=64)))


def test_a_reset_waits_for_what_runs_and_revives_what_was_lost(use):
    async def body(sandbox: LocalSandbox) -> None:
        running = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 0.3; echo done"], timeout_s=60))
        await asyncio.sleep(0.05)
        await sandbox.reset()
        assert (await running).stdout == b"done\n"
        sandbox._cell.link.kill()
        with pytest.raises(SandboxLost):
            await sandbox.read("hello.txt")
        await sandbox.reset()
        assert await sandbox.read("hello.txt") == b"hello"

    use(body)


def test_calls_wait_for_a_reset_as_for_each_other(use):
    async def body(sandbox: LocalSandbox) -> None:
        left = ["sh", "-c", "echo x > left"]
        calls = [sandbox.exec(left, timeout_s=60), sandbox.reset(), sandbox.exec(["ls"], timeout_s=60), sandbox.write("b", b"")]
        calls += [sandbox.snapshot(), sandbox.exec(left, timeout_s=60), sandbox.reset(), sandbox.exec(["ls"], timeout_s=60)]
        results = await asyncio.gather(*calls)
        assert (results[2].stdout, results[-1].stdout) == (b"hello.txt\n", b"b\nhello.txt\n")

    use(body)


def test_a_sandbox_that_is_closed_in_the_middle_of_a_reset_spoils_no_other(base, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(1)
        try:
            for delay in (0, 0, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012):
                sandbox = await pool.acquire(SandboxSpec(base))
                assert await sandbox.read("hello.txt") == b"hello"
                resetting = asyncio.create_task(sandbox.reset())
                await asyncio.sleep(delay)
                await sandbox.close()
                with suppress(SandboxLost):
                    await resetting
        finally:
            await pool.close()

    asyncio.run(main())
    assert left_behind() == []


def test_nothing_is_left_by_a_closed_sandbox_that_was_reset(base, left_behind: Callable[[], list[psutil.Process]]):
    async def main() -> None:
        pool = LocalPool(2)
        try:
            sandbox = await pool.acquire(SandboxSpec(base))
            await sandbox.reset()
            await sandbox.snapshot()
            resetting = asyncio.create_task(sandbox.reset())
            await asyncio.sleep(0)
            resetting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await resetting
            await sandbox.close()
            with pytest.raises(SandboxLost):
                await sandbox.reset()
        finally:
            await pool.close()

    asyncio.run(main())
    assert left_behind() == []
