from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import local_pool
import pytest

from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task
from gagar_mcore.tasks.write import write_task
from gagar_mcore.verify.patch import BASE
from gagar_sandbox import Limits, LocalPool, Sandbox, SandboxSpec

Result = TypeVar("Result")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A task of two modules."""
    return load_task(write_task(next(t for t in (generate_task(1, i) for i in range(50)) if len(t.files) == 2), tmp_path))


@pytest.fixture
def with_pool() -> Callable[[Callable[[LocalPool], Awaitable[Any]]], Any]:
    return local_pool.with_pool


@pytest.fixture
def in_session(with_pool: Callable[..., Any], task: Task) -> Callable[[Callable[[Sandbox], Awaitable[Any]]], Any]:
    """Runs a coroutine in a sandbox as a session has it."""

    def run(use: Callable[[Sandbox], Awaitable[Result]]) -> Any:
        async def body(pool: LocalPool) -> Result:
            return await use(await pool.acquire(SandboxSpec(task.repository, task.workdir, {BASE: task.repository}, Limits())))

        return with_pool(body)

    return run
