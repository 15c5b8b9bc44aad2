import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gagar_sandbox import LocalPool, SandboxSpec
from gagar_sandbox.local import LocalSandbox


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "a base"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello")
    return folder


def inside(base: Path, use: Callable[[LocalSandbox], Awaitable[None]]) -> None:
    async def body() -> None:
        pool = LocalPool()
        try:
            await use(await pool.acquire(SandboxSpec(base)))
        finally:
            await pool.close()

    asyncio.run(body())


def test_a_command_runs_in_the_workdir_and_leaves_the_base_alone(base: Path) -> None:
    async def use(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "pwd; cat hello.txt; echo changed > hello.txt; exit 3"], timeout_s=30)
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, b"/app\nhello")
        assert await sandbox.read("hello.txt") == b"changed\n"

    inside(base, use)
    assert (base / "hello.txt").read_text() == "hello"
