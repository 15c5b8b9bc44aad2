"""An event loop whose clock jumps to the next timer instead of waiting for it: what takes hours passes in moments.

Code that keeps to the loop's clock (`asyncio.sleep`, `asyncio.timeout`, `loop.time`) runs unchanged. Threads and sockets live on
the real clock and have no place here.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jump(selectors.SelectSelector):
    """Sees no events and never waits; counts how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that no timer brings about")
        if timeout > 0:
            self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock begins at 0 s. Raises RuntimeError where nothing is left that could happen."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
