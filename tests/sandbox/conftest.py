import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

import gagar_sandbox.host
from gagar_sandbox import LocalPool, SandboxSpec
from gagar_sandbox.local import LocalSandbox

Use = Callable[[LocalSandbox], Awaitable[None]]
LeftBehind = Callable[[], list[psutil.Process]]


@pytest.fixture
def left_behind() -> LeftBehind:
    """Lists the processes below this one that were not there before the test."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "a base"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello")
    return folder


@pytest.fixture
def use(base: Path) -> Callable[..., None]:
    """Runs a coroutine function on a fresh sandbox: of the base, or of a spec."""

    def run(body: Use, spec: SandboxSpec | None = None) -> None:
        async def main() -> None:
            pool = LocalPool(1)
            try:
                await body(await pool.acquire(spec or SandboxSpec(base)))
            finally:
                await pool.close()

        asyncio.run(main())

    return run


@pytest.fixture
def no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gagar_sandbox.host, "find_cgroups", lambda: None)
