"""A child process that the event loop waits for through a pidfd, without a thread."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence


class Process:
    """`words` run in a session of its own with an empty environment. Its standard input and output are one socket,
    whose other end is `socket`; it inherits the descriptors `inherited` besides. Its standard error is kept in memory."""

    def __init__(self, words: Sequence[str], inherited: Sequence[int]) -> None:
        self._said = open(os.memfd_create("stderr"), "rb")  # noqa: SIM115
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = subprocess.Popen(
                    words,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._said,
                    pass_fds=inherited,
                    start_new_session=True,  # Ctrl-C in a terminal is for the controller alone
                    env={},
                )
            self._pidfd: int | None = os.pidfd_open(self._child.pid)
        except BaseException:
            self.socket.close()
            raise

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
        os.close(self._pidfd)
        self._pidfd = None
        return True

    def said(self, most: int = 4096) -> str:
        self._said.seek(0)
        return self._said.read(most).decode(errors="replace").strip()
