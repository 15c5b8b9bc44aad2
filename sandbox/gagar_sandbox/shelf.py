"""Cells between two sandboxes: their keeper waits in its control group, and nothing else of them is left."""

from collections import deque
from collections.abc import Callable

from gagar_sandbox.cell import Cell
from gagar_sandbox.templates import Held
from gagar_sandbox.types import Limits, SandboxLost

ROOM = 16


class Shelf:
    """The last few that were given back, each with the template that it holds. `on_close` is told that of each that is closed."""

    def __init__(self, on_close: Callable[[Held], None]) -> None:
        self._cells: deque[tuple[Held, Cell]] = deque()
        self._on_close = on_close

    async def take(self, held: Held, limits: Limits) -> Cell | None:
        """One of the same template and limits."""
        for found in reversed(list(self._cells)):
            if found[0] is held and found[1].limits == limits:
                self._cells.remove(found)
                if found[1].fit:
                    return found[1]
                await self._drop(*found)
                return await self.take(held, limits)
        return None

    async def put(self, held: Held, cell: Cell) -> None:
        """Keep it if it is fit to be used again."""
        try:
            if not cell.fit:
                raise SandboxLost("not to be used again")
            await cell.rest()
        except SandboxLost:
            await self._drop(held, cell)
            return
        self._cells.append((held, cell))
        if len(self._cells) > ROOM:
            await self._drop(*self._cells.popleft())

    async def close(self) -> None:
        while self._cells:
            await self._drop(*self._cells.popleft())

    async def _drop(self, held: Held, cell: Cell) -> None:
        try:
            await cell.close()
        finally:
            self._on_close(held)
