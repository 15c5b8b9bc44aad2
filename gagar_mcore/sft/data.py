"""Training data of supervised fine-tuning: packed columns on disk, cut into optimizer steps."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.store import read_manifest

KIND = "sft-data"


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
    for field in fields(data):
        np.save(directory / f"{field.name}.npy", getattr(data, field.name))


def read_sft_data(directory: Path) -> SftData:
    """The columns, memory-mapped. Raises RecordError where the directory is not published."""
    read_manifest(directory, KIND)
    return SftData(**{field.name: np.load(directory / f"{field.name}.npy", mmap_mode="r") for field in fields(SftData)})
