"""A process that the event loop waits for through a pidfd, without a thread."""

import asyncio
import contextlib
import os
import select
import signal


class Process:
    """Owns `pidfd`. Reaping is its parent's business."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd: int | None = pidfd

    def __del__(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    @property
    def ended(self) -> bool:
        return self._pidfd is None or _is_readable(self._pidfd)

    def kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False where it has not come in time."""
        if self._pidfd is None:
            return True
        if not self.ended and not await readable(self._pidfd, timeout_s):
            return False
        if self._pidfd is not None:  # another may have waited too
            os.close(self._pidfd)
            self._pidfd = None
        return True


async def readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until there is something to read, or the end; False where there is not in time."""
    loop = asyncio.get_running_loop()
    own = os.dup(descriptor)  # the loop knows one reader a descriptor, and it may be closed while we wait
    ready = asyncio.Event()
    loop.add_reader(own, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), timeout_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(own)
        os.close(own)
    return True


def _is_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
