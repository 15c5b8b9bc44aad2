"""Ranks wait for input only while the process that started them lives."""

import os
import time
from collections.abc import Callable

POLL_SECONDS = 0.02


class Orphaned(RuntimeError):
    """The launcher is gone; nobody will hand over another batch."""


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait as long as it takes while the parent lives. Raises Orphaned when it does not."""
    parent = os.getppid()
    while not ready():
        if os.getppid() != parent:
            raise Orphaned("the process that started this rank has ended")
        time.sleep(POLL_SECONDS)
