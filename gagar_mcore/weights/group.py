"""The process group over which weights go: a sender, rank 0, and the ranks of one server behind it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

Backend = Literal["gloo", "nccl"]
DEVICES = {"gloo": "cpu", "nccl": "cuda"}


@dataclass(frozen=True, slots=True)
class Group:
    """name: as the server is told it; ranks: of the server; timeout_s: of every wait."""

    name: str
    ranks: int
    backend: Backend
    timeout_s: float

    @property
    def device(self) -> str:
        return DEVICES[self.backend]

    @property
    def size(self) -> int:
        return 1 + self.ranks


class Sending:
    """The sender's end."""

    def __init__(self, group: Group, listening: socket.socket) -> None:
        """Waits for the server's ranks. Raises RuntimeError where they do not come in time."""
        timeout = timedelta(seconds=group.timeout_s)
        address, port = listening.getsockname()
        store: Any = dist.TCPStore(address, port, group.size, True, timeout, master_listen_fd=listening.detach())
        # As the server's ranks, which go through `torch.distributed.rendezvous`, find each other's addresses there.
        for prefix in (group.name, f"{group.name}/", f"{group.device}/"):
            store = dist.PrefixStore(prefix, store)
        self._timeout = timeout
        self._group = _open(store, group, timeout)

    def close(self) -> None:
        """Hang up, on ranks that still wait, too."""
        self._group = None

    def broadcast(self, tensor: Tensor) -> None:
        """Raises RuntimeError where the server's ranks do not take it in time."""
        self._group.broadcast(tensor, 0).wait(self._timeout)


def _open(store: Any, group: Group, timeout: timedelta) -> Any:
    if group.backend == "gloo":
        return dist.ProcessGroupGloo(store, 0, group.size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, 0, group.size, options)


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """A port at this address of this machine's for the store of a group. Raises OSError."""
    with socket.create_server((address, 0)) as free:
        yield free
