import pytest
import torch
from safetensors.torch import load_file
from stored import read_stored, write_plain

from gagar_mcore.records.epochs import Fence, Fenced, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import file_sum, read_manifest
from gagar_mcore.weights.files import TensorFiles, read_companions
from gagar_mcore.weights.hosts import host_id
from gagar_mcore.weights.publish import publish_weights

COMPANIONS = {"config.json": b"{}", "tokenizer.json": b"[]"}


@pytest.fixture
def layout(tmp_path):
    run = RunLayout(tmp_path)
    open_epoch(run, 1, 0)
    return run


def publish(layout, version, value, epoch=1):
    def fill(directory):
        write_plain({"a": torch.full((2, 3), value), "b": torch.arange(6.0).view(2, 3)}.items(), COMPANIONS, directory)
        return {"model.safetensors": file_sum(directory / "model.safetensors")}

    return publish_weights(layout, version, fill, Fence(layout, epoch))


def test_a_version_holds_tensors_and_companions(layout):
    path = publish(layout, 1, 0.5)

    assert path == layout.weights(1)
    assert load_file(path / "model.safetensors")["b"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read_companions(path) == COMPANIONS
    assert read_manifest(path, "weights").meta == {"version": 1, "host": host_id()}


def test_a_version_that_is_not_whole_is_not_visible(layout):
    visible = []

    def fill(directory):
        (directory / "model.safetensors").touch()
        visible.append(layout.weights(1).exists())
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        publish_weights(layout, 1, fill, Fence(layout, 1))
    assert visible == [False]
    assert list(layout.weights(1).parent.iterdir()) == []


def test_the_same_weights_again_leave_everything_as_it_is(layout):
    first = publish(layout, 1, 0.5)
    written = (first / "model.safetensors").stat().st_ino

    assert publish(layout, 1, 0.5) == first
    assert (first / "model.safetensors").stat().st_ino == written
    assert current_lineage(layout) == 0
    assert [p.name for p in first.parent.iterdir()] == [first.name]


def test_other_weights_of_a_published_version_open_a_lineage_and_keep_the_old_ones(layout):
    first = publish(layout, 1, 0.5)
    second = publish(layout, 1, 0.25)

    assert second == layout.weights(1, lineage=1)
    assert current_lineage(layout) == 1
    assert read_stored(first)["a"].eq(0.5).all()
    assert read_stored(second)["a"].eq(0.25).all()
    assert publish(layout, 2, 0.1) == layout.weights(2, lineage=1)


def test_a_fenced_trainer_publishes_nothing(layout):
    open_epoch(layout, 1, 1)

    with pytest.raises(Fenced):
        publish(layout, 1, 0.5)
    assert not layout.weights(1).exists()


def test_what_a_fenced_trainer_published_after_the_takeover_is_replaced_in_the_same_lineage(layout):
    stale = publish(layout, 1, 0.5)
    open_epoch(layout, 1, 1)  # it had found version 1 unpublished: the fenced trainer came between look and rename

    assert publish(layout, 1, 0.25, epoch=2) == stale
    assert current_lineage(layout) == 0
    assert read_manifest(stale, "weights").epoch == 2
    assert read_stored(stale)["a"].eq(0.25).all()
    assert len(list(stale.parent.glob("refused-0-000001-*"))) == 1


def test_a_directory_without_weights_and_an_unknown_tensor_are_refused_by_name(layout):
    path = publish(layout, 1, 0.5)

    with pytest.raises(ValueError, match="holds no tensor lm_head"):
        TensorFiles(path).read("lm_head.weight")
    with pytest.raises(ValueError, match="holds no safetensors file"):
        TensorFiles(layout.root)
