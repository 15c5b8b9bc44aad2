"""How published weights come into an engine's server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Mode = Literal["disk", "tensor", "distributed", "delta"]
Order = Callable[[str, dict[str, Any] | None], Awaitable[dict[str, Any]]]  # path and body, None of a question


class TransportError(RuntimeError):
    """The weights did not come through; the server may hold a mixture."""


@dataclass(frozen=True, slots=True)
class Update:
    """weights: a published directory. flush: whether the server drops the caches that older weights have filled."""

    weights: Path
    version: int
    flush: bool

    def marks(self) -> dict[str, Any]:
        """What makes tokens carry the version from then on."""
        return {"weight_version": str(self.version), "flush_cache": self.flush}


class Transport(Protocol):
    async def bring(self, order: Order, update: Update) -> None:
        """Have the server that `order` gives an order to load the weights. The caller has paused it, and sees to the deadline.
        Raises TransportError, and whatever `order` raises."""

    async def close(self) -> None: ...


class Disk:
    """The server reads the published directory."""

    async def bring(self, order: Order, update: Update) -> None:
        await load_directory(order, update, update.weights)

    async def close(self) -> None: ...


async def load_directory(order: Order, update: Update, directory: Path) -> None:
    await order("/update_weights_from_disk", {"model_path": str(directory.absolute()), **update.marks()})


@asynccontextmanager
async def session(order: Order) -> AsyncIterator[None]:
    """Within it alone a server takes tensors. One that is late, so that the caller is cancelled, is not waited for again."""
    await order("/begin_weight_update", {})
    try:
        yield
    except Exception:
        await order("/end_weight_update", {})
        raise
    await order("/end_weight_update", {})
