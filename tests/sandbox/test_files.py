import errno
from collections.abc import Awaitable

import pytest

from gagar_sandbox import Limits, SandboxSpec
from gagar_sandbox.local import LocalSandbox


async def refusal(call: Awaitable[object]) -> int | None:
    try:
        await call
    except OSError as error:
        return error.errno
    return None


def test_write_and_read(use):
    async def body(sandbox: LocalSandbox) -> None:
        data = bytes(range(256)) * 1000
        await sandbox.write("new/deep/file", data)
        assert await sandbox.read("/app/new/deep/file") == data
        await sandbox.write("new/deep/file", b"short")
        assert await sandbox.read("new/deep/file") == b"short"
        await sandbox.write("empty", b"")
        assert await sandbox.read("empty", max_bytes=0) == b""

    use(body)


def test_a_mode_survives_and_names_may_be_odd(use):
    async def body(sandbox: LocalSandbox) -> None:
        name = "a b\nc\udcff.sh"
        await sandbox.write(name, b"#!/bin/sh\nexit 1\n")
        await sandbox.exec(["chmod", "755", name], timeout_s=30)
        await sandbox.write(name, b"#!/bin/sh\nexit 4\n")
        assert (await sandbox.exec([f"./{name}"], timeout_s=30)).exit_code == 4

    use(body)


def test_reading_what_cannot_be_read(use):
    refused = {
        "missing": errno.ENOENT,
        "folder": errno.EISDIR,
        "fifo": errno.EINVAL,
        "/dev/zero": errno.EINVAL,
        "loop": errno.ELOOP,
        "hello.txt/x": errno.ENOTDIR,
        "to-environ": errno.EINVAL,
        "big": errno.EFBIG,
        "/root/.ssh/id_rsa": errno.ENOENT,
    }

    async def body(sandbox: LocalSandbox) -> None:
        make = "mkdir folder; mkfifo fifo; ln -s loop loop; ln -s /proc/self/environ to-environ; head -c 1001 /dev/zero > big"
        await sandbox.exec(["sh", "-c", make], timeout_s=30)
        assert {path: await refusal(sandbox.read(path, max_bytes=1000)) for path in refused} == refused

    use(body)


def test_writing_what_cannot_be_written(use, base, tmp_path):
    refused = {
        "folder": errno.EISDIR,
        "fifo": errno.ENXIO,
        "to-memory": errno.EROFS,
        "/dev/null": errno.EINVAL,
        "/usr/bin/python3": errno.EROFS,
        "/proc/sys/vm/swappiness": errno.EROFS,
        "/anywhere": errno.EROFS,
        "/tests/new": errno.EROFS,
        "hello.txt/x": errno.ENOTDIR,
        "hello.txt/x/y": errno.ENOTDIR,
        "d/" * 3000 + "x": errno.ENAMETOOLONG,
    }

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(["sh", "-c", "mkdir folder; mkfifo fifo; ln -s /proc/self/mem to-memory"], timeout_s=30)
        assert {path: await refusal(sandbox.write(path, b"data")) for path in refused} == refused

    (tmp_path / "tests").mkdir()
    use(body, SandboxSpec(base, read_only={"/tests": tmp_path / "tests"}))


def test_a_file_may_lie_as_deep_as_a_path_is_long(use):
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.write("d/" * 1500 + "x", b"data")
        assert await sandbox.read("d/" * 1500 + "x") == b"data"

    use(body)


def test_a_reader_left_behind_does_not_open_a_fifo(use):
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(["sh", "-c", "mkfifo fifo; cat fifo & sleep 0.1"], timeout_s=30)
        with pytest.raises(OSError):
            await sandbox.write("fifo", b"data")

    use(body)


def test_limits_hold_for_writes(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(OSError) as too_long:
            await sandbox.write("long", b"x" * ((2 << 20) + 1))
        assert too_long.value.errno == errno.EFBIG
        with pytest.raises(OSError) as full:
            for number in range(8):
                await sandbox.write(f"part{number}", b"x" * (2 << 20))
        assert full.value.errno == errno.ENOSPC
        await sandbox.exec(["sh", "-c", "rm part*"], timeout_s=30)
        await sandbox.write("again", b"x")

    use(body, SandboxSpec(base, limits=Limits(file_size_mb=2, disk_mb=8)))
