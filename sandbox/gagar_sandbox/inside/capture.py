"""What is kept of a command's output."""

from __future__ import annotations

import os

CHUNK = 1 << 16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[bytes, bytes], None]


class Kept:
    """The head and the tail of what came, `limit` bytes in all."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def add(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._cut += excess

    @property
    def truncated(self) -> bool:
        return self._cut > 0

    def text(self) -> bytes:
        middle = b"\n[... %d bytes cut ...]\n" % self._cut if self._cut else b""
        return bytes(self._head + middle + self._tail)


class Capture(Kept):
    """Reads one output pipe. `tell` is given all of it, with the stream's name."""

    def __init__(self, limit: int, name: bytes, tell: Tell | None) -> None:
        super().__init__(limit)
        self._name = name
        self._tell = tell
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.ended = False

    def pull(self) -> bool:
        """Take one chunk of what is there; False where there is nothing."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return False
        self.ended = not data
        if data and self._tell:
            self._tell(self._name, data)
        self.add(data)
        return not self.ended

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.source)
