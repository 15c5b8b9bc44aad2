"""Ranks wait for input only while the process that started them lives."""

import os
import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.02


class Orphaned(RuntimeError):
    """The launcher is gone; nobody will hand over another batch."""


def wait_for_batch(ready: Callable[[], bool], path: Path, timeout_s: float) -> None:
    """Wait for the batch at `path` while the parent lives. Raises Orphaned when it does not, and TimeoutError after `timeout_s`:
    a controller on another machine may have ended unseen."""
    parent, deadline = os.getppid(), time.monotonic() + timeout_s
    while not ready():
        if os.getppid() != parent:
            raise Orphaned("the process that started this rank has ended")
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{path}: no batch within trainer.batch_timeout_s={timeout_s:g}; start the controller again with --resume,"
                " or raise the timeout where it collects for longer"
            )
        time.sleep(POLL_SECONDS)


def wait_for_record(path: Path, timeout_s: float) -> None:
    """Wait until the controller has published the record, for `timeout_s` at most and while the parent lives."""
    parent, deadline = os.getppid(), time.monotonic() + timeout_s
    while not path.is_file() and os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
