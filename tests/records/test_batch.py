from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from gagar_mcore.records.batch import COLUMNS, KIND, Batch, read_batch, write_columns
from gagar_mcore.records.batch_writer import BatchWriter
from gagar_mcore.records.columns import open_columns, save_columns
from gagar_mcore.records.serialize import from_plain, to_plain
from gagar_mcore.records.store import RecordError, publish_directory, publish_json, read_json
from gagar_mcore.records.types import Trajectory, Turn, Verification, WeightSpan


def pack(trajectories: Sequence[Trajectory], advantages: Sequence[float], weights: Sequence[float]) -> Batch:
    """As a writer packs them."""
    with TemporaryDirectory() as folder:
        writer = BatchWriter(Path(folder))
        for trajectory, advantage in zip(trajectories, advantages, strict=True):
            writer.append(trajectory, advantage)
        writer.finish(weights)
        return Batch(**{name: np.array(column) for name, column in open_columns(Path(folder)).items()})


def test_packing_keeps_every_token_of_every_sequence(make_trajectory: Callable[..., Trajectory]) -> None:
    first, second = make_trajectory(0, generated=3), make_trajectory(1, generated=2, context=1)
    batch = pack([first, second], [0.5, -0.5], [0.1, 0.2])
    assert batch.tokens.tolist() == [*first.token_ids, *second.token_ids]
    assert batch.loss_mask.tolist() == [*first.loss_mask, *second.loss_mask]
    assert batch.cu_seqlens.tolist() == [0, 7, 10]
    assert batch.num_sequences == 2


def test_a_batch_on_disk_comes_back_equal_and_memory_mapped(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    batch = pack([make_trajectory(0), make_trajectory(1)], [1 / 3, -1 / 3], [0.1, 0.1])

    def fill(directory: Path) -> dict[str, int]:
        write_columns(batch, directory)
        return {"step": 7}

    publish_directory(tmp_path / "batch", KIND, 1, fill)
    read, meta = read_batch(tmp_path / "batch")
    assert meta == {"step": 7}
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(read, name), getattr(batch, name))
        assert getattr(read, name).dtype == getattr(batch, name).dtype
        assert isinstance(getattr(read, name), np.memmap)


def test_weight_versions_follow_the_spans_and_only_where_generated(make_trajectory: Callable[..., Trajectory]) -> None:
    trajectory = make_trajectory(context=2, generated=4, weight_spans=[WeightSpan(3, 2, 4), WeightSpan(4, 4, 6)])
    assert pack([trajectory], [1.0], [1.0]).weight_version.tolist() == [-1, -1, 3, 3, 4, 4]


def test_a_segment_is_a_sequence_of_its_own_with_the_trajectorys_credit(make_trajectory: Callable[..., Trajectory]) -> None:
    cut = make_trajectory(
        loss_mask=[0, 1, 1, 0, 1, 0, 0],
        segment_starts=[0, 3, 5],
        turns=[turn(2, True), turn(1, False)],
        weight_spans=[WeightSpan(2, 1, 5)],
    )
    batch = pack([cut, make_trajectory(1, generated=1, context=1)], [0.5, -0.5], [0.1, 0.2])
    assert cut.segments == [(0, 3), (3, 5), (5, 7)]
    assert batch.cu_seqlens.tolist() == [0, 3, 5, 7]  # nothing was generated in the last
    assert batch.tokens.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert batch.advantages.tolist() == [0.5, 0.5, -0.5]
    assert batch.weights.tolist() == [0.1, 0.1, 0.2]
    assert batch.error_mask.tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert batch.weight_version.tolist() == [-1, 2, 2, -1, 2, -1, 0]


def test_a_record_from_before_there_were_segments_is_one_segment(make_trajectory: Callable[..., Trajectory]) -> None:
    plain = to_plain(make_trajectory())
    del plain["segment_starts"]
    assert from_plain(Trajectory, plain) == make_trajectory()
    assert make_trajectory().segments == [(0, 7)]


def turn(generated: int, ok: bool) -> Turn:
    return Turn(0, "", "", "", ok, "stop", generated, 0.0)


def test_errors_cover_the_generated_tokens_of_failed_turns_only(make_trajectory: Callable[..., Trajectory]) -> None:
    trajectory = make_trajectory(
        context=2, generated=8, loss_mask=[0, 0, 1, 1, 0, 1, 1, 1, 0, 1], turns=[turn(2, False), turn(1, True), turn(2, False)]
    )
    errors = pack([trajectory], [1.0], [1.0]).error_mask
    assert errors.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    assert errors.dtype == np.uint8


def test_a_batch_without_a_column_is_refused_by_name(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    def fill(directory: Path) -> dict[str, int]:
        batch = pack([make_trajectory()], [1.0], [1.0])
        save_columns(directory, {name: getattr(batch, name) for name in COLUMNS if name != "error_mask"})
        return {}

    publish_directory(tmp_path / "batch", KIND, 1, fill)
    with pytest.raises(RecordError, match=r"batch: has no error_mask; .* begin the run anew"):
        read_batch(tmp_path / "batch")


def test_a_batch_of_another_kind_is_refused(tmp_path: Path) -> None:
    publish_directory(tmp_path / "batch", "weights", 1, lambda directory: {})
    with pytest.raises(RecordError, match="holds weights"):
        read_batch(tmp_path / "batch")


def test_a_trajectory_survives_json_bit_for_bit(tmp_path: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    trajectory = make_trajectory(
        patch="bytes \udcff\x00",
        segment_starts=[0, 5],
        logprobs=[0.0] * 4 + [-1e-7, -0.1, float(np.float32(-0.3))],
        turns=[Turn(0, "view a f", "view", "1:x", True, "stop", 4, 0.25)],
        verification=Verification(1.0, {"t": "passed"}, "out", 0.1),
    )
    publish_json(tmp_path / "t.json", to_plain(trajectory), 1)
    assert from_plain(Trajectory, read_json(tmp_path / "t.json")) == trajectory
