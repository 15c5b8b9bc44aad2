"""Training data of supervised fine-tuning: packed columns on disk, cut into optimizer steps."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.columns import ColumnFile, describe, open_columns, save_columns
from gagar_mcore.records.store import read_manifest

KIND = "sft-data"


@dataclass(frozen=True, slots=True)
class Sequence:
    """tokens `[T]` int32; loss_weights `[T]` float32."""

    tokens: npt.NDArray[np.int32]
    loss_weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SftData:
    """T tokens of S sequences end to end, in the order of training, for K optimizer steps.

    tokens `[T]` int32, loss_weights `[T]` float32 (0 on the first token of a sequence, which nothing predicts),
    cu_seqlens `[S + 1]` int64; step k trains on sequences `steps[k]` to `steps[k + 1]`, steps `[K + 1]` int64.
    """

    tokens: npt.NDArray[np.int32]
    loss_weights: npt.NDArray[np.float32]
    cu_seqlens: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]

    @property
    def num_steps(self) -> int:
        return len(self.steps) - 1

    def bounds(self, step: int) -> npt.NDArray[np.int64]:
        """The `cu_seqlens` of one step, from 0; they begin at its first token."""
        return self.cu_seqlens[self.steps[step] : self.steps[step + 1] + 1]

    def denominator(self, step: int) -> float:
        """Sum of the loss weights of one step, from 0: the loss is the weighted mean of the negative log-likelihood."""
        bounds = self.bounds(step)
        return float(self.loss_weights[bounds[0] : bounds[-1]].sum(dtype=np.float64))


def write_sft_data(data: SftData, directory: Path) -> None:
    """Fill a directory that is published with kind `KIND`."""
    save_columns(directory, {field.name: getattr(data, field.name) for field in fields(data)})


def write_sequences(directory: Path, sequences: Iterable[Sequence], per_step: int) -> dict[str, Any]:
    """Fill a directory likewise with `sequences`, one in memory at a time, `per_step` of them a step and in the last what is
    left; returns the manifest's metadata."""
    dtypes = {"tokens": np.int32, "loss_weights": np.float32, "cu_seqlens": np.int64, "steps": np.int64}
    files = {name: ColumnFile(directory, name, dtype) for name, dtype in dtypes.items()}
    bounds = [0]
    for sequence in sequences:
        files["tokens"].append(sequence.tokens)
        files["loss_weights"].append(sequence.loss_weights)
        bounds.append(bounds[-1] + len(sequence.tokens))
    count = len(bounds) - 1
    files["cu_seqlens"].append(np.array(bounds))
    files["steps"].append(np.array([*range(0, count, per_step), count]))
    for file in files.values():
        file.close()
    describe(directory, files)
    return {"sequences": count, "tokens": bounds[-1], "longest": max(np.diff(bounds).tolist(), default=0)}


def read_sft_data(directory: Path) -> SftData:
    """The columns, memory-mapped. Raises RecordError where the directory is not published."""
    read_manifest(directory, KIND)
    return SftData(**open_columns(directory))
