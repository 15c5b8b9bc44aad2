"""What is done about a sandbox that was lost."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from gagar_sandbox.types import SandboxLost

_Result = TypeVar("_Result")


async def twice(run: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `run` gives, which is tried once more where its sandbox was lost. Raises SandboxLost where that was lost too."""
    with suppress(SandboxLost):
        return await run()
    return await run()
