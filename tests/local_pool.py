"""A pool of this machine's sandboxes for the length of one coroutine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gagar_sandbox import LocalPool

Result = TypeVar("Result")


def with_pool(use: Callable[[LocalPool], Awaitable[Result]]) -> Result:
    async def body() -> Result:
        pool = LocalPool()
        try:
            return await use(pool)
        finally:
            await pool.close()

    return asyncio.run(body())
