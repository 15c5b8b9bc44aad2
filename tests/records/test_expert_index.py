import json
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.records.batch import EXPERT_INDEX, KIND, read_batch
from gagar_mcore.records.batch_writer import BatchWriter
from gagar_mcore.records.expert_index import ExpertIndex, StoredRows, stored_files
from gagar_mcore.records.expert_store import ExpertStore
from gagar_mcore.records.experts import UNKNOWN, open_experts, publish_experts
from gagar_mcore.records.store import RecordError, publish_directory

WIDTH = (3, 2)


def numbers(rows: int, seed: int = 0, most: int = 250) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most, (rows, *WIDTH)).astype(np.int16)


def overlaid(num_tokens: int, parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    plain = np.full((num_tokens, *WIDTH), UNKNOWN, np.int16)
    for token, rows in parts:
        plain[token : token + len(rows)] = rows
    return plain


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_slices_of_an_index_are_those_of_the_numbers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = ExpertStore(tmp_path_factory.mktemp("run") / "experts", file_bytes=200)
    num_tokens = data.draw(st.integers(1, 40))
    starts = sorted(data.draw(st.sets(st.integers(0, num_tokens - 1), min_size=1, max_size=6)))
    parts = [(token, numbers(data.draw(st.integers(1, num_tokens - token)), token, 400)) for token in starts]
    index = ExpertIndex.build(num_tokens, [(token, store.append(rows)) for token, rows in parts])
    again = ExpertIndex.from_bytes(index.to_bytes())
    plain = overlaid(num_tokens, parts)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, num_tokens), st.integers(0, num_tokens))))

    assert again.shape == plain.shape
    np.testing.assert_array_equal(again[:], plain)
    np.testing.assert_array_equal(again[start:stop], plain[start:stop])


def test_a_part_within_another_ends_before_it(tmp_path: Path) -> None:
    store = ExpertStore(tmp_path / "experts")
    parts = [(0, numbers(1)), (8, numbers(4, 8)), (9, numbers(1, 9))]
    index = ExpertIndex.build(13, [(token, store.append(rows)) for token, rows in parts])
    np.testing.assert_array_equal(index[11:13], overlaid(13, parts)[11:13])


def test_numbers_below_256_take_a_byte_and_files_are_of_bounded_size(tmp_path: Path) -> None:
    store = ExpertStore(tmp_path / "experts", file_bytes=100)
    small, large = store.append(numbers(10)), store.append(numbers(5, most=400) + 1)

    assert (small.itemsize, large.itemsize) == (1, 2)
    assert [file.stat().st_size for file in sorted((tmp_path / "experts").iterdir())] == [60, 60]
    assert small.file != large.file


def test_rows_go_on_where_a_file_was_deleted(tmp_path: Path) -> None:
    store = ExpertStore(tmp_path / "experts")
    Path(store.append(numbers(4)).file).unlink()
    rows = numbers(3, 1)
    np.testing.assert_array_equal(ExpertIndex.build(3, [(0, store.append(rows))])[:], rows)


@pytest.mark.parametrize("fault", ["missing", "short", "changed"])
def test_a_file_that_is_not_what_it_was_is_named(tmp_path: Path, fault: str) -> None:
    stored = ExpertStore(tmp_path / "experts").append(numbers(8))
    file = Path(stored.file)
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    {"missing": file.unlink, "short": lambda: file.write_bytes(content[:-1]), "changed": lambda: file.write_bytes(content)}[
        fault
    ]()
    with pytest.raises(RecordError, match=r"00000\.bin: (No such file|damaged at byte 0)"):
        ExpertIndex.build(8, [(0, stored)])[2:3]


@pytest.mark.parametrize(
    "changes", [{"width": [1]}, {"rows": -1}, {"itemsize": 3}, {"offset": None}, {"crc": "x"}, {"width": 3}, {"file": ...}]
)
def test_a_reference_that_is_none_is_refused(changes: dict) -> None:
    plain = asdict(StoredRows("a", 0, 1, WIDTH, 1, zlib.crc32(b"")))
    assert StoredRows.read(json.loads(json.dumps(plain))) == StoredRows("a", 0, 1, WIDTH, 1, 0)
    broken = {name: value for name, value in (plain | changes).items() if value is not ...}
    with pytest.raises(ValueError):
        StoredRows.read(broken)


def test_a_trajectory_and_a_batch_refer_to_stored_experts_without_a_copy(tmp_path: Path, make_trajectory) -> None:
    store = ExpertStore(tmp_path / "experts")
    cut = make_trajectory(loss_mask=[0, 1, 1, 0, 1, 0, 0], segment_starts=[0, 3, 5])  # the last segment is not trained on
    whole, unknown = make_trajectory(1), make_trajectory(2)
    parts = [(0, numbers(2, 1)), (3, numbers(2, 2)), (5, numbers(2, 3))]
    indexes = [
        ExpertIndex.build(7, [(token, store.append(rows)) for token, rows in parts]),
        ExpertIndex.build(len(whole.token_ids), [(0, store.append(numbers(len(whole.token_ids), 4)))]),
    ]
    sums = [publish_experts(tmp_path / f"{i}.npy", index) for i, index in enumerate(indexes)]
    read = [open_experts(tmp_path / f"{i}.npy", each) for i, each in enumerate(sums)]

    def fill(directory: Path) -> dict[str, int]:
        writer = BatchWriter(directory)
        for trajectory, experts in zip((cut, unknown, whole), (read[0], None, read[1]), strict=True):
            writer.append(trajectory, 1.0, experts)
        writer.finish([1.0, 1.0, 1.0])
        return {}

    publish_directory(tmp_path / "batch", KIND, 1, fill)
    batch, _ = read_batch(tmp_path / "batch")
    expected = np.concatenate(
        [
            overlaid(7, parts)[:5],
            overlaid(len(unknown.token_ids), []),
            overlaid(len(whole.token_ids), [(0, numbers(len(whole.token_ids), 4))]),
        ]
    )
    assert batch.experts is not None and batch.experts.shape == expected.shape
    np.testing.assert_array_equal(batch.experts[:], expected)
    assert stored_files(tmp_path / "batch" / EXPERT_INDEX) == [tmp_path / "experts" / "00000.bin"]


def test_a_part_that_reaches_into_the_next_segment_is_refused(tmp_path: Path) -> None:
    index = ExpertIndex.build(6, [(0, ExpertStore(tmp_path / "experts").append(numbers(4)))])
    with pytest.raises(RecordError, match=r"reach over the ends of tokens \[0, 3\)"):
        index.cut(0, 3)
    assert replace(index, num_tokens=4)[:].shape == (4, *WIDTH)
