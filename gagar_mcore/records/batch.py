"""The batch of one step: packed tokens in columns on disk, memory-mapped by the trainer's ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.store import RecordError, read_manifest
from gagar_mcore.records.types import Trajectory

KIND = "batch"
COLUMNS = ("tokens", "logprobs", "loss_mask", "error_mask", "cu_seqlens", "advantages", "weights", "weight_version")
OPTIONAL = "experts"


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences end to end, each a segment of a trajectory, those of one trajectory in order.

    tokens `[T]` int32, logprobs `[T]` float32 (at generation, 0 elsewhere), loss_mask `[T]` uint8 (1 on generated
    tokens), error_mask `[T]` uint8 (1 on those of a turn whose call was malformed or refused), cu_seqlens `[S + 1]` int64,
    advantages `[S]` float64, weights `[S]` float64 (aggregation weight of the sequence's tokens, fixed here so that no rank
    derives a denominator), weight_version `[T]` int32 (-1 where not generated), experts `[T, MoE layers, top_k]` int16, where the
    engine recorded them: those that each token passed when it was sampled, -1 where that is not known.
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
    experts: npt.NDArray[np.int16] | None = None

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1


def versions_per_token(trajectory: Trajectory) -> npt.NDArray[np.int32]:
    versions = np.full(len(trajectory.token_ids), -1, np.int32)
    for span in trajectory.weight_spans:
        versions[span.start : span.end] = span.version
    return np.where(np.asarray(trajectory.loss_mask) == 1, versions, -1).astype(np.int32)


def errors_per_token(trajectory: Trajectory) -> npt.NDArray[np.uint8]:
    """The `error_mask` of one trajectory. Tokens of a turn that a deadline cut off, before its call was judged, have 0."""
    failed = np.repeat([not turn.ok for turn in trajectory.turns], [turn.generated_tokens for turn in trajectory.turns])
    errors = np.zeros(len(trajectory.token_ids), np.uint8)
    errors[np.flatnonzero(trajectory.loss_mask)[: len(failed)]] = failed
    return errors


def trained_segments(trajectory: Trajectory) -> list[tuple[int, int]]:
    """The segments that become sequences of a batch: those in which the policy generated anything."""
    return [(start, end) for start, end in trajectory.segments if any(trajectory.loss_mask[start:end])]


def pack(trajectories: Sequence[Trajectory], advantages: Sequence[float], weights: Sequence[float]) -> Batch:
    """The batch of trajectories, their advantages and the weights of their tokens."""
    segments = [trained_segments(t) for t in trajectories]
    counts = [len(own) for own in segments]

    def column(dtype: type, values: Callable[[Trajectory], Any]) -> npt.NDArray[Any]:
        whole = ((np.asarray(values(t), dtype), own) for t, own in zip(trajectories, segments, strict=True))
        return np.concatenate([tokens[start:end] for tokens, own in whole for start, end in own])

    return Batch(
        tokens=column(np.int32, lambda t: t.token_ids),
        logprobs=column(np.float32, lambda t: t.logprobs),
        loss_mask=column(np.uint8, lambda t: t.loss_mask),
        error_mask=column(np.uint8, errors_per_token),
        cu_seqlens=np.cumsum([0, *(end - start for own in segments for start, end in own)], dtype=np.int64),
        advantages=np.repeat(np.asarray(advantages, np.float64), counts),
        weights=np.repeat(np.asarray(weights, np.float64), counts),
        weight_version=column(np.int32, versions_per_token),
    )


def write_columns(batch: Batch, directory: Path) -> None:
    for name in (*COLUMNS, OPTIONAL) if batch.experts is not None else COLUMNS:
        np.save(directory / f"{name}.npy", getattr(batch, name))


def read_batch(directory: Path, min_epoch: int = 0) -> tuple[Batch, dict[str, Any]]:
    """The batch of a published directory, memory-mapped, and its manifest's metadata. Raises RecordError, also where a column
    is lacking."""
    manifest = read_manifest(directory, KIND, min_epoch)
    if lacking := [name for name in COLUMNS if f"{name}.npy" not in manifest.files]:
        names = ", ".join(lacking)
        raise RecordError(f"{directory}: has no {names}; another version wrote it, begin the run anew in another output")
    present = (*COLUMNS, OPTIONAL) if f"{OPTIONAL}.npy" in manifest.files else COLUMNS
    columns = {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in present}
    return Batch(**columns), manifest.meta
