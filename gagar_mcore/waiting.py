"""Waiting for one thing or another."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TypeVar

Result = TypeVar("Result")


async def unless(ends: Coroutine[None, None, None], work: Awaitable[Result]) -> Result | None:
    """What `work` comes to; None where `ends` is over first. Whichever is left is cancelled."""
    tasks = working, _ = asyncio.ensure_future(work), asyncio.create_task(ends)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
