"""Columns that grow on disk, and what is refused of damaged ones."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gagar_mcore.records.batch import KIND, read_batch
from gagar_mcore.records.batch_writer import BatchWriter
from gagar_mcore.records.columns import BLOCK_BYTES, ColumnFile, describe, open_columns, save_columns
from gagar_mcore.records.experts import UNKNOWN
from gagar_mcore.records.store import RecordError, begin_directory, file_sum, finish_directory, read_manifest
from gagar_mcore.records.types import Trajectory


def test_a_column_that_grew_is_the_rows_end_to_end_and_its_sum_is_the_files(tmp_path: Path) -> None:
    parts = [np.arange(n * 6, dtype=np.int32).reshape(n, 2, 3) for n in (3, 0, BLOCK_BYTES // 20, 1)]
    column = ColumnFile(tmp_path, "numbers", np.int16, (2, 3))
    for part in parts:
        column.append(part)
    assert column.close() == file_sum(tmp_path / "numbers.bin") == column.close()
    describe(tmp_path, {"numbers": column})
    np.testing.assert_array_equal(open_columns(tmp_path)["numbers"], np.concatenate(parts).astype(np.int16))


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    column = ColumnFile(tmp_path, "numbers", np.int16, (2,))
    with pytest.raises(ValueError, match=r"numbers: rows are \[3\], those before are \[2\]"):
        column.append(np.zeros((4, 3), np.int16))
    column.abandon()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_full_disk_is_an_error_whichever_thread_meets_it(tmp_path: Path, sealed: bool) -> None:
    (tmp_path / "numbers.bin").symlink_to("/dev/full")
    column = ColumnFile(tmp_path, "numbers", np.int16)
    with pytest.raises(OSError, match="No space left"):
        column.append(np.zeros(9, np.int16))
        if sealed:
            column.seal()
        column.close()
    column.abandon()


def test_empty_columns_are_read_back(tmp_path: Path) -> None:
    save_columns(tmp_path, {"none": np.empty((0, 4), np.float32)})
    assert open_columns(tmp_path)["none"].shape == (0, 4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "columns.json").unlink(), "columns.json: missing"),
        (lambda d: (d / "a.bin").unlink(), "a.bin: missing"),
        (lambda d: (d / "a.bin").write_bytes(b"1234567"), "7 bytes instead of 12"),
        (lambda d: (d / "columns.json").write_text("{"), "does not describe"),
        (lambda d: (d / "columns.json").write_text(json.dumps({"a": {"dtype": "<i4"}})), "does not describe"),
        (lambda d: (d / "columns.json").write_text("[1]"), "does not describe"),
    ],
)
def test_what_is_no_directory_of_columns_is_refused(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    save_columns(tmp_path, {"a": np.arange(3, dtype=np.int32)})
    damage(tmp_path)
    with pytest.raises(RecordError, match=message):
        open_columns(tmp_path)


def test_sums_made_while_writing_are_those_of_the_published_files(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory]
) -> None:
    directory = begin_directory(tmp_path / "batch")
    writer = BatchWriter(directory)
    for member in range(3):
        writer.append(make_trajectory(member, generated=member + 1), 0.5)
    sums = writer.finish([0.1, 0.2, 0.3])
    finish_directory(directory, tmp_path / "batch", KIND, 1, {}, lambda: None, sums)
    assert set(sums) < set(read_manifest(tmp_path / "batch", KIND, verify=True).files)
    assert read_batch(tmp_path / "batch")[0].weights.tolist() == [0.1, 0.2, 0.3]


def test_experts_begin_where_a_trajectory_first_has_them(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    writer = BatchWriter(tmp_path)
    known = np.arange(5 * 2 * 2, dtype=np.uint8).reshape(5, 2, 2)
    for experts in (None, known, None):
        writer.append(make_trajectory(generated=2), 0.5, experts)
    writer.finish([0.1] * 3)
    column = open_columns(tmp_path)["experts"]
    assert column.dtype == np.int16 and column.shape == (18, 2, 2)
    np.testing.assert_array_equal(column[6:11], known)
    assert (column[:6] == UNKNOWN).all() and (column[11:] == UNKNOWN).all()
