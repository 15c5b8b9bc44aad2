"""Ranks end with the processes that started them, and wait for input only while these live."""

import ctypes
import os
import signal
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.02


class Orphaned(RuntimeError):
    """The launcher is gone; nobody will hand over another batch."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait as long as it takes while the parent lives. Raises Orphaned when it does not."""
    parent = os.getppid()
    while not ready():
        if os.getppid() != parent:
            raise Orphaned("the process that started this rank has ended")
        time.sleep(POLL_SECONDS)
