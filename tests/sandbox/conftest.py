import asyncio
from collections.abc import Awaitable, Callable, Iterator
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


@pytest.fixture(scope="module")
def of_module() -> Iterator[tuple[asyncio.Runner, LocalPool]]:
    """A pool, and the loop that it lives in."""
    with asyncio.Runner() as runner:
        pool = LocalPool(1)
        yield runner, pool
        runner.run(pool.close())


@pytest.fixture
def use(base: Path, of_module: tuple[asyncio.Runner, LocalPool]) -> Callable[..., None]:
    """Runs a coroutine function on a fresh sandbox of the module's pool: of the base, or of a spec."""
    runner, pool = of_module

    def run(body: Use, spec: SandboxSpec | None = None) -> None:
        async def main() -> None:
            sandbox = await pool.acquire(spec or SandboxSpec(base))
            try:
                await body(sandbox)
            finally:
                await sandbox.close()

        runner.run(main())

    return run


@pytest.fixture
def use_alone(base: Path) -> Callable[..., None]:
    """As `use`, on a pool of its own."""

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
