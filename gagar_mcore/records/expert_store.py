"""The files that stored experts lie in."""

import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.expert_index import StoredRows
from gagar_mcore.records.experts import compact

FILE_BYTES = 1 << 30


class ExpertStore:
    """Appends rows to files `00000.bin`, `00001.bin` ... of a directory of its own, and says where they are. They are then on
    their way to the disk, not yet durable: a reader compares checksums."""

    def __init__(self, directory: Path, file_bytes: int = FILE_BYTES) -> None:
        """directory: does not exist."""
        directory.mkdir(parents=True)
        self._directory, self._most = directory.absolute(), file_bytes
        self._number, self._end = -1, file_bytes

    def append(self, experts: npt.NDArray[np.int16]) -> StoredRows:
        """experts `[m, layers with experts, top_k]`, of at least one row."""
        rows = np.ascontiguousarray(compact(experts))
        data = rows.tobytes()
        if self._end + len(data) > self._most:
            self._number, self._end = self._number + 1, 0
        path = self._directory / f"{self._number:05d}.bin"
        with open(path, "ab") as file:
            offset = file.tell()  # 0 where the file was deleted since
            file.write(data)
        self._end = offset + len(data)
        layers, top_k = rows.shape[1:]
        return StoredRows(str(path), offset, len(rows), (layers, top_k), rows.itemsize, zlib.crc32(data))
