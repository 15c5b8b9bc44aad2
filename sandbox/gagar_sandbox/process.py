"""A child process that the event loop waits for through a pidfd, without a thread."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence

STDERR_BYTES = 4096


class Process:
    """`words` run in a session of its own with an empty environment. Its standard input and output are `stdio`; it inherits
    the descriptors `inherited` besides. What it wrote on standard error is in `said` once it has ended."""

    def __init__(self, words: Sequence[str], stdio: socket.socket, inherited: Sequence[int]) -> None:
        self.said = ""
        self._stderr = os.memfd_create("stderr")
        try:
            self._child = subprocess.Popen(
                words,
                stdin=stdio.fileno(),
                stdout=stdio.fileno(),
                stderr=self._stderr,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C in a terminal is for the controller alone
                env={},
            )
        except BaseException:
            os.close(self._stderr)
            raise
        self._pidfd: int | None = os.pidfd_open(self._child.pid)

    def kill(self) -> None:
        """Kill the process and its children, as far as they have stayed in its session."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the end and reap; False where it has not come in time."""
        if self._pidfd is None:
            return True
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), timeout_s)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._pidfd)
        self._child.wait()
        self.said = os.pread(self._stderr, STDERR_BYTES, 0).decode(errors="replace").strip()
        os.close(self._stderr)
        os.close(self._pidfd)
        self._pidfd = None
        return True
