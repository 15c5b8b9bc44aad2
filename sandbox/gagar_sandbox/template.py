"""The process that sandboxes of one base are forked from."""

import os
import socket
import subprocess
from collections.abc import Sequence

from gagar_sandbox.process import Process, readable
from gagar_sandbox.types import SandboxLost

START_S = 60.0
STOP_S = 10.0
SAID_BYTES = 4096


class Refused(SandboxLost):
    """The system would not build the sandbox; the message is its own."""


class Template:
    """Costs two megabytes and a start of bubblewrap and Python, once. `open` it and `close` it."""

    def __init__(self, words: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stderr = os.memfd_create("stderr")
        try:
            self._child = subprocess.Popen(
                words,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C in a terminal is for the controller alone
                env={},
            )
        except BaseException:
            self._control.close()
            os.close(self._stderr)
            raise
        finally:
            theirs.close()
        self._process = Process(os.pidfd_open(self._child.pid))

    @classmethod
    async def open(cls, words: Sequence[str]) -> "Template":
        """Raises Refused where bubblewrap does not build it, OSError where the command does not start."""
        template = cls(words)
        try:
            if not await readable(template._control.fileno(), START_S):
                raise SandboxLost(f"bwrap has not built a sandbox within {START_S:.0f} s")
            if template._control.recv(SAID_BYTES) != b"ready":
                await template._process.wait(STOP_S)
                raise Refused(template._said())
        except BaseException:
            template._process.kill()
            await template.close()
            raise
        return template

    @property
    def ended(self) -> bool:
        return self._process.ended

    def keeper(self) -> socket.socket:
        """The controlling end of a new process, see inside/keeper.py. Raises SandboxLost where the template has died."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._control, [b"\0\0\0\0"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise SandboxLost(f"the template has died: {error} {self._said()}") from error
        finally:
            theirs.close()
        return ours

    async def close(self) -> None:
        """It ends when the last that it has forked has."""
        self._control.close()
        try:
            ended = await self._process.wait(STOP_S)
        finally:
            self._process.kill()
        if not ended and not await self._process.wait(STOP_S):
            raise SandboxLost("a killed template has not ended")
        self._child.wait()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1

    def _said(self) -> str:
        return os.pread(self._stderr, SAID_BYTES, 0).decode(errors="replace").strip()
