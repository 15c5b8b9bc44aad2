"""Columns on disk: one file of plain numbers each, `NAME.bin`, and `columns.json`, which says what they are."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.store import FileSum, RecordError

DESCRIPTION = "columns.json"
BLOCK_BYTES = 1 << 20

Column = npt.NDArray[Any]


class ColumnFile:
    """A column `[n, *width]` that grows at its end, written and hashed by a thread of its own. What cannot be written is raised
    by a later call."""

    def __init__(self, directory: Path, name: str, dtype: npt.DTypeLike, width: tuple[int, ...] = ()) -> None:
        self.name, self.dtype, self.width = name, np.dtype(dtype), width
        self.path = directory / f"{name}.bin"
        self._file = open(self.path, "wb")  # noqa: SIM115  (closed by `close`)
        self._at_once = max(1, BLOCK_BYTES // max(1, self.dtype.itemsize * math.prod(width)))  # rows
        self._block: list[memoryview] = []  # not yet given to the thread
        self._rows = self._bytes = self._waiting = 0
        self._hash = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def append(self, rows: Column) -> None:
        """rows `[m, *width]`, of a type that the column's can hold. Raises ValueError for another width."""
        if rows.shape[1:] != self.width:
            raise ValueError(f"{self.name}: rows are {list(rows.shape[1:])}, those before are {list(self.width)}")
        for start in range(0, len(rows), self._at_once):
            data = np.ascontiguousarray(rows[start : start + self._at_once], self.dtype).reshape(-1).view(np.uint8).data
            self._block.append(data)
            self._waiting += len(data)
            if self._waiting >= BLOCK_BYTES:
                self._write()
        self._rows += len(rows)

    @property
    def description(self) -> dict[str, Any]:
        return {"dtype": self.dtype.str, "shape": [self._rows, *self.width]}

    def seal(self) -> None:
        """Begin to bring all of it to the disk, beside other columns; `close` waits for that."""
        self._write(durably=True)

    def close(self) -> FileSum:
        """The file's sum. May be called again."""
        if not self._file.closed:
            self._write()
            self._settle()
            self._thread.shutdown()
            self._file.close()
        return self._bytes, self._hash.hexdigest()

    def abandon(self) -> None:
        """Nobody wants the file any more, whatever became of it."""
        self._thread.shutdown(cancel_futures=True)
        with suppress(OSError):
            self._file.close()

    def _write(self, durably: bool = False) -> None:
        self._settle()
        self._writing = self._thread.submit(self._put, self._block, durably)
        self._block, self._waiting = [], 0

    def _settle(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _put(self, block: list[memoryview], durably: bool) -> None:
        data = b"".join(block)  # few long calls: each one waits for its turn to hold the interpreter
        self._file.write(data)
        self._hash.update(data)
        os.posix_fadvise(self._file.fileno(), self._bytes, len(data), os.POSIX_FADV_DONTNEED)  # begins to write to the disk
        self._bytes += len(data)
        if durably:
            self._file.flush()
            os.fsync(self._file.fileno())


def describe(directory: Path, columns: Mapping[str, ColumnFile]) -> None:
    """Complete a directory of columns: what `open_columns` trusts."""
    (directory / DESCRIPTION).write_text(json.dumps({name: column.description for name, column in columns.items()}))


def save_columns(directory: Path, columns: Mapping[str, Column]) -> None:
    """Write whole columns."""
    files = {name: ColumnFile(directory, name, column.dtype, column.shape[1:]) for name, column in columns.items()}
    for name, file in files.items():
        file.append(columns[name])
        file.close()
    describe(directory, files)


def open_columns(directory: Path) -> dict[str, Column]:
    """All columns, memory-mapped. Raises RecordError where `columns.json` is absent or no description, or contradicts a file."""
    path = directory / DESCRIPTION
    try:
        described = json.loads(path.read_text())
        return {
            name: _open(directory / f"{name}.bin", np.dtype(of["dtype"]), tuple(of["shape"])) for name, of in described.items()
        }
    except FileNotFoundError as error:
        raise RecordError(f"{error.filename}: missing; another version wrote it, begin the run anew in another output") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: does not describe the columns beside it, {error}") from error


def _open(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    if path.stat().st_size != (expected := dtype.itemsize * int(np.prod(shape, dtype=np.int64))):
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of {expected}")
    return np.memmap(path, dtype, "r", shape=shape) if expected else np.empty(shape, dtype)
