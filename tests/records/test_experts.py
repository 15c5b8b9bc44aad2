from pathlib import Path

import numpy as np
import pytest

from gagar_mcore.records.experts import UNKNOWN, open_experts, publish_experts
from gagar_mcore.records.store import RecordError, sweep_temporaries


@pytest.mark.parametrize(
    ("values", "kind"), [([0, 255, 3, 4], np.uint8), ([0, 256, 3, 4], np.int16), ([0, UNKNOWN, 3, 4], np.int16)]
)
def test_a_file_holds_the_known_tokens_in_the_smallest_type_that_does(tmp_path: Path, values: list[int], kind: type) -> None:
    experts = np.full((4, 2, 1), UNKNOWN, np.int16)
    experts[:2] = np.reshape(values, (2, 2, 1))
    summed = publish_experts(tmp_path / "new" / "t.experts.npy", experts)
    read = open_experts(tmp_path / "new" / "t.experts.npy", summed)
    assert read.dtype == kind
    assert read.tolist() == experts[:2].tolist()


def test_where_nothing_is_known_the_file_has_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t.experts.npy"
    assert open_experts(path, publish_experts(path, np.full((3, 2, 2), UNKNOWN, np.int16))).shape == (0, 2, 2)


def test_a_damaged_replaced_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.experts.npy"
    summed = publish_experts(path, np.ones((3, 2, 2), np.int16))
    publish_experts(path, np.zeros((3, 2, 2), np.int16))
    with pytest.raises(RecordError, match=r"t\.experts\.npy: missing or damaged"):
        open_experts(path, summed)
    path.unlink()
    with pytest.raises(RecordError, match=r"t\.experts\.npy: missing or damaged"):
        open_experts(path, summed)


def test_what_a_killed_writer_leaves_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "t.experts.npy"
    path.with_name(f".{path.name}.17.tmp").write_bytes(b"half")
    publish_experts(path, np.ones((3, 2, 2), np.int16))
    sweep_temporaries(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
