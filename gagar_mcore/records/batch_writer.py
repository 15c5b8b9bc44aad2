"""A batch that grows on disk, trajectory by trajectory."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gagar_mcore.records.batch import EXPERT_INDEX, OPTIONAL, SEQUENCE_COLUMNS, TOKEN_COLUMNS, token_columns, trained_segments
from gagar_mcore.records.columns import Column, ColumnFile, describe
from gagar_mcore.records.expert_index import ExpertIndex, ExpertIndexBuilder
from gagar_mcore.records.experts import UNKNOWN
from gagar_mcore.records.store import FileSum
from gagar_mcore.records.types import Trajectory


class BatchWriter:
    """Writes the columns of a `Batch` into an empty directory. In memory it keeps a few numbers a sequence, whatever the
    number of tokens."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._columns = {name: ColumnFile(directory, name, dtype) for name, dtype in TOKEN_COLUMNS.items()}
        self._lengths: list[int] = []
        self._advantages: list[float] = []
        self._owners: list[int] = []  # of each sequence, the number of its trajectory
        self._trajectories = 0
        self._stored = ExpertIndexBuilder()

    def append(self, trajectory: Trajectory, advantage: float, experts: Column | ExpertIndex | None = None) -> int:
        """Its segments become sequences; their number. experts `[m, MoE layers, top_k]`: of its first m tokens."""
        segments = trained_segments(trajectory)
        columns = token_columns(trajectory)
        if isinstance(experts, ExpertIndex):
            self._index(experts, segments)
            experts = None
        if experts is not None and OPTIONAL not in self._columns:
            self._begin_experts(experts.shape[1:])
        for start, end in segments:
            for name, column in columns.items():
                self._columns[name].append(column[start:end])
            self._append_experts(None if experts is None else experts[start:end], end - start)
        self._lengths += [end - start for start, end in segments]
        self._advantages += [advantage] * len(segments)
        self._owners += [self._trajectories] * len(segments)
        self._trajectories += 1
        return len(segments)

    def finish(self, weights: Sequence[float]) -> dict[str, FileSum]:
        """Complete the directory; weights: of the tokens of each trajectory, in the order of `append`. The sums of its files."""
        ends = np.cumsum([0, *self._lengths], dtype=np.int64)
        of_sequences = {"cu_seqlens": ends, "advantages": self._advantages, "weights": [weights[i] for i in self._owners]}
        for name, dtype in SEQUENCE_COLUMNS.items():
            self._columns[name] = ColumnFile(self._directory, name, dtype)
            self._columns[name].append(np.asarray(of_sequences[name], dtype))
        for column in self._columns.values():
            column.seal()
        sums = {column.path.name: column.close() for column in self._columns.values()}
        if (index := self._stored.finish(int(ends[-1]))) is not None:
            sums[EXPERT_INDEX] = _write(self._directory / EXPERT_INDEX, index.to_bytes())
        describe(self._directory, self._columns)
        return sums

    def abandon(self) -> None:
        """Nobody wants the batch any more, or it is finished."""
        for column in self._columns.values():
            column.abandon()

    def _index(self, experts: ExpertIndex, segments: Sequence[tuple[int, int]]) -> None:
        token = sum(self._lengths)
        for start, end in segments:
            self._stored.append(token, experts.cut(start, end))
            token += end - start

    def _begin_experts(self, width: tuple[int, ...]) -> None:
        self._columns[OPTIONAL] = ColumnFile(self._directory, OPTIONAL, np.int16, width)
        self._append_experts(None, sum(self._lengths))

    def _append_experts(self, known: Column | None, tokens: int) -> None:
        if (column := self._columns.get(OPTIONAL)) is None:
            return
        if known is not None:
            column.append(known)
            tokens -= len(known)
        column.append(np.broadcast_to(np.int16(UNKNOWN), (tokens, *column.width)))


def _write(path: Path, data: bytes) -> FileSum:
    path.write_bytes(data)
    return len(data), hashlib.sha256(data).hexdigest()
