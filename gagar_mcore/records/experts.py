"""The experts that a trajectory's tokens passed when it was sampled: a file of its own beside the trajectory's record, which
holds the file's size and checksum. In the file are the numbers, or an index that says where they are stored."""

import hashlib
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.expert_index import UNKNOWN, ExpertIndex
from gagar_mcore.records.store import FileSum, RecordError, file_sum, write_file

Experts = npt.NDArray[np.int16]  # [tokens, layers with experts, top_k]


def compact(experts: Experts) -> npt.NDArray[np.uint8 | np.int16]:
    """The same numbers in one byte each where that holds them all."""
    fits = experts.size and experts.min() >= 0 and experts.max() <= np.iinfo(np.uint8).max
    return experts.astype(np.uint8) if fits else experts


def publish_experts(path: Path, experts: Experts | ExpertIndex) -> FileSum:
    """Write the file atomically, without the unknown tokens at the end; its sum is what `open_experts` asks for."""
    data = experts.to_bytes() if isinstance(experts, ExpertIndex) else _numbers(experts)
    write_file(path, data)
    return len(data), hashlib.sha256(data).hexdigest()


def _numbers(experts: Experts) -> bytes:
    known = np.flatnonzero((experts != UNKNOWN).any(axis=(1, 2)))
    buffer = io.BytesIO()
    np.save(buffer, compact(experts[: known[-1] + 1 if len(known) else 0]))
    return buffer.getvalue()


def open_experts(path: Path, expected: FileSum) -> npt.NDArray[np.uint8 | np.int16] | ExpertIndex:
    """`[m, layers with experts, top_k]`, memory-mapped: of the first m tokens of the trajectory; those behind are unknown. Or an
    index of all of them. Raises RecordError where the file is missing or is not the one that `expected` is the sum of."""
    if not path.is_file() or file_sum(path) != tuple(expected):
        raise RecordError(f"{path}: missing or damaged, does not match the trajectory's record")
    with open(path, "rb") as file:
        if file.read(1) == b"{":
            return ExpertIndex.from_bytes(path.read_bytes())
    experts: npt.NDArray[np.uint8 | np.int16] = np.load(path, mmap_mode="r")
    return experts
