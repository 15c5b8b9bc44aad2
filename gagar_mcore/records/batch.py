"""The batch of one step: packed tokens in columns on disk, memory-mapped by the trainer's ranks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.columns import Column, open_columns, save_columns
from gagar_mcore.records.expert_index import ExpertIndex
from gagar_mcore.records.store import RecordError, read_manifest
from gagar_mcore.records.types import Trajectory

KIND = "batch"
TOKEN_COLUMNS: dict[str, np.dtype[Any]] = {
    "tokens": np.dtype(np.int32),
    "logprobs": np.dtype(np.float32),
    "loss_mask": np.dtype(np.uint8),
    "error_mask": np.dtype(np.uint8),
    "weight_version": np.dtype(np.int32),
}
SEQUENCE_COLUMNS: dict[str, np.dtype[Any]] = {
    "cu_seqlens": np.dtype(np.int64),
    "advantages": np.dtype(np.float64),
    "weights": np.dtype(np.float64),
}
COLUMNS = (*TOKEN_COLUMNS, *SEQUENCE_COLUMNS)
OPTIONAL = "experts"
EXPERT_INDEX = "experts.index"


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences end to end, each a segment of a trajectory, those of one trajectory in order.

    tokens `[T]` int32, logprobs `[T]` float32 (at generation, 0 elsewhere), loss_mask `[T]` uint8 (1 on generated
    tokens), error_mask `[T]` uint8 (1 on those of a turn whose call was malformed or refused), cu_seqlens `[S + 1]` int64,
    advantages `[S]` float64, weights `[S]` float64 (aggregation weight of the sequence's tokens, fixed here so that no rank
    derives a denominator), weight_version `[T]` int32 (-1 where not generated), experts `[T, MoE layers, top_k]` int16, where the
    engine recorded them: those that each token passed when it was sampled, -1 where that is not known; or an index, whose
    slices are read where a sidecar stored them.
    A column's value at index t belongs to token t; the logits that predict it sit at t - 1.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    loss_mask: npt.NDArray[np.uint8]
    error_mask: npt.NDArray[np.uint8]
    cu_seqlens: npt.NDArray[np.int64]
    advantages: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    weight_version: npt.NDArray[np.int32]
    experts: npt.NDArray[np.int16] | ExpertIndex | None = None

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1


def versions_per_token(trajectory: Trajectory) -> npt.NDArray[np.int32]:
    generated = _generated(trajectory)
    versions = np.full(len(trajectory.token_ids), -1, np.int32)
    for span in trajectory.weight_spans:
        np.copyto(versions[span.start : span.end], span.version, where=generated[span.start : span.end])
    return versions


def errors_per_token(trajectory: Trajectory) -> npt.NDArray[np.uint8]:
    """The `error_mask` of one trajectory. Tokens of a turn that a deadline cut off, before its call was judged, have 0."""
    errors = np.zeros(len(trajectory.token_ids), np.uint8)
    if all(turn.ok for turn in trajectory.turns):
        return errors
    spoilt = np.repeat([not turn.ok for turn in trajectory.turns], [turn.generated_tokens for turn in trajectory.turns])
    generated = _generated(trajectory)
    of_generated = np.zeros(np.count_nonzero(generated), np.uint8)
    of_generated[: len(spoilt)] = spoilt[: len(of_generated)]
    errors[generated] = of_generated
    return errors


def _generated(trajectory: Trajectory) -> npt.NDArray[np.bool_]:
    """The loss mask, read where it lies."""
    return np.asarray(trajectory.loss_mask, np.uint8).view(np.bool_)


def token_columns(trajectory: Trajectory) -> dict[str, Column]:
    """`TOKEN_COLUMNS` of one trajectory, all its segments end to end."""
    return {
        "tokens": np.asarray(trajectory.token_ids, np.int32),
        "logprobs": np.asarray(trajectory.logprobs, np.float32),
        "loss_mask": np.asarray(trajectory.loss_mask, np.uint8),
        "error_mask": errors_per_token(trajectory),
        "weight_version": versions_per_token(trajectory),
    }


def trained_segments(trajectory: Trajectory) -> list[tuple[int, int]]:
    """The segments that become sequences of a batch: those in which the policy generated anything."""
    generated = _generated(trajectory)
    return [(start, end) for start, end in trajectory.segments if generated[start:end].any()]


def write_columns(batch: Batch, directory: Path) -> None:
    """Fill a directory that is published with kind `KIND`."""
    present = (*COLUMNS, OPTIONAL) if batch.experts is not None else COLUMNS
    save_columns(directory, {name: getattr(batch, name) for name in present})


def read_batch(directory: Path, min_epoch: int = 0) -> tuple[Batch, dict[str, Any]]:
    """The batch of a published directory, memory-mapped, and its manifest's metadata. Raises RecordError, also where a column
    is lacking."""
    manifest = read_manifest(directory, KIND, min_epoch)
    columns: dict[str, Any] = dict(open_columns(directory))
    if lacking := [name for name in COLUMNS if name not in columns]:
        names = ", ".join(lacking)
        raise RecordError(f"{directory}: has no {names}; another version wrote it, begin the run anew in another output")
    if (index := directory / EXPERT_INDEX).is_file():
        columns[OPTIONAL] = ExpertIndex.from_bytes(index.read_bytes())
    return Batch(**columns), manifest.meta
