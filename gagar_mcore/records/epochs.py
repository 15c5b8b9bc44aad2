"""One writer: every controller that takes over a run opens a new epoch, and what an older epoch writes afterwards is refused."""

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import IO, Any

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import RecordError, write_file


class Fenced(RuntimeError):
    """Another controller has taken over this run; this process must stop writing."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """`next_step` and `next_version` were the first ones not yet published when this epoch began."""

    number: int
    next_step: int
    next_version: int
    started: float
    host: str
    pid: int


def read_epochs(layout: RunLayout) -> list[Epoch]:
    try:
        return [Epoch(**entry) for entry in json.loads(layout.epochs.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise RecordError(f"{layout.epochs}: damaged; restore it from a copy of the run") from error


def min_batch_epoch(epochs: list[Epoch], step: int) -> int:
    """The lowest epoch that may have written the batch of `step`."""
    return max((e.number for e in epochs if e.next_step <= step), default=0)


def min_weights_epoch(epochs: list[Epoch], version: int) -> int:
    """The lowest epoch that may have written weights `version`."""
    return max((e.number for e in epochs if e.next_version <= version), default=0)


@dataclass(frozen=True, slots=True)
class Fence:
    """Called right before a record becomes visible: raises Fenced unless `epoch` is still the newest."""

    layout: RunLayout
    epoch: int

    def __call__(self) -> None:
        newest = max((e.number for e in read_epochs(self.layout)), default=0)
        if newest > self.epoch:
            raise Fenced(f"{self.layout.root}: epoch {newest} has taken over from epoch {self.epoch}")


class RunLock:
    """The exclusive right to write one run directory, held while the process lives."""

    def __init__(self, layout: RunLayout) -> None:
        self._file: IO[Any] = open(layout.lock, "a+")  # noqa: SIM115  (held until release)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise Fenced(f"{layout.root}: another process is running this run; stop it or choose another output") from error

    def release(self) -> None:
        self._file.close()


def open_epoch(layout: RunLayout, next_step: int, next_version: int) -> Epoch:
    """Begin the next epoch. The caller holds the RunLock."""
    epochs = read_epochs(layout)
    number = max((e.number for e in epochs), default=0) + 1
    epoch = Epoch(number, next_step, next_version, time.time(), socket.gethostname(), os.getpid())
    write_file(layout.epochs, json.dumps([asdict(e) for e in [*epochs, epoch]]).encode())
    return epoch
