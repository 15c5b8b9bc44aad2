"""Structured waiting: what belongs together ends together."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def gather_all(*coroutines: Coroutine[Any, Any, Result]) -> list[Result]:
    """Results in order. The first failure cancels the others and is raised as it is."""
    tasks = [asyncio.create_task(c) for c in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
