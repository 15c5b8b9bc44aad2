"""A copy of published weights that follows them by what changed, and begins anew where it cannot."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from stored import write_plain

from gagar_mcore.records.epochs import Fence, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST, RecordError, publish_directory
from gagar_mcore.weights.deltas import KIND, comparable, delta_meta, delta_of, write_delta
from gagar_mcore.weights.publish import publish_weights
from gagar_mcore.weights.replica import HELD, Replica

STEPS = 4


@pytest.fixture
def layout(tmp_path):
    """Versions 0 to 3 and the deltas between them; a step changes one value of a hundred and the configuration."""
    run = RunLayout(tmp_path / "run")
    run.root.mkdir()
    open_epoch(run, 1, 0)
    tensors = {"a": torch.randn(200, 100, generator=torch.Generator().manual_seed(1)), "b": torch.arange(6.0)}
    for version in range(STEPS):
        tensors["a"].view(-1)[version::100] += 1
        companions = {"config.json": json.dumps({"version": version}).encode(), "tokenizer.json": b"{}"}
        publish_weights(run, version, lambda d, c=companions: write_plain(tensors.items(), c, d) or {}, Fence(run, 1))
        if version:
            publish_delta(run, version)
    return run


def publish_delta(run, version, base=None):
    base, target = base or run.weights(version - 1), run.weights(version)
    fill = lambda directory: write_delta(base, target, directory) and delta_meta(base, target)  # noqa: E731
    delta_of(target).parent.mkdir(exist_ok=True)
    publish_directory(delta_of(target), KIND, 1, fill)


def assert_holds(replica, weights):
    names = {path.name for path in weights.iterdir()} - {MANIFEST}
    assert {path.name for path in replica.directory.iterdir()} == names | {HELD}
    for name in names:
        assert (replica.directory / name).read_bytes() == (weights / name).read_bytes(), name


def test_it_begins_with_a_copy_and_follows_by_what_changed(layout, tmp_path):
    replica = Replica(tmp_path / "replica")
    first = replica.bring(layout.weights(0))
    assert first.whole is not None
    assert_holds(replica, layout.weights(0))
    second = replica.bring(layout.weights(1))
    assert second.whole is None and 0 < second.bytes < first.bytes / 10
    assert_holds(replica, layout.weights(1))
    assert replica.bring(layout.weights(1)).bytes == 0


def test_it_catches_up_over_several_versions(layout, tmp_path):
    replica = Replica(tmp_path / "replica")
    first = replica.bring(layout.weights(0))
    late = replica.bring(layout.weights(3))
    assert late.whole is None and late.bytes < first.bytes / 5
    assert_holds(replica, layout.weights(3))


FAULTS = ["delta damaged", "delta missing", "copy damaged", "copy cut short", "killed", "mark damaged"]
HEADERS = {"copy emptied": b"", "header too long": b"\xff" * 99, "header of another kind": b"\x02" + bytes(7) + b"[]"}


@pytest.mark.parametrize("fault", [*FAULTS, *HEADERS])
def test_where_it_cannot_follow_it_copies_and_says_why(layout, tmp_path, fault):
    replica = Replica(tmp_path / "replica")
    replica.bring(layout.weights(0))
    changes = next(delta_of(layout.weights(1)).glob("*.changes"))
    held = replica.directory / "model.safetensors"
    match fault:
        case "delta damaged":
            flip(changes)
        case "delta missing":
            shutil.rmtree(changes.parent)
        case "copy damaged":
            flip(held)
        case "copy cut short":
            held.write_bytes(held.read_bytes()[:-8])
        case "killed":
            (replica.directory / HELD).unlink()
            flip(held)
        case "mark damaged":
            (replica.directory / HELD).write_text("null")
        case _:
            held.write_bytes(HEADERS[fault])
    transfer = replica.bring(layout.weights(1))
    damaged = "model.safetensors: damaged"
    says = {"delta damaged": "model.safetensors.changes", "copy damaged": damaged, "copy cut short": damaged}
    says |= dict.fromkeys(HEADERS, "damaged")
    assert transfer.whole is not None and says.get(fault, "no delta leads") in transfer.whole
    assert_holds(replica, layout.weights(1))
    assert Replica(replica.directory).bring(layout.weights(2)).whole is None


def test_who_comes_while_a_copy_is_made_waits_for_it(layout, tmp_path, monkeypatch):
    """Where a copy takes longer than whoever asked for it waits, the next who asks must not write the same files."""
    replica, copied, at_work, most = Replica(tmp_path / "replica"), shutil.copyfile, [], []

    def copyfile(source, target):
        at_work.append(target)
        most.append(len(at_work))
        copied(source, target)
        time.sleep(0.01)
        at_work.remove(target)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replica.bring, [layout.weights(version) for version in (0, 1, 2, 0)]))
    assert max(most) == 1
    assert_holds(replica, layout.weights(0))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 64
    path.write_bytes(content)


def test_published_weights_that_are_damaged_are_an_error_and_nothing_is_held(layout, tmp_path):
    flip(layout.weights(2) / "model.safetensors")
    replica = Replica(tmp_path / "replica")
    for _ in range(2):
        with pytest.raises(RecordError, match=r"model\.safetensors: damaged"):
            replica.bring(layout.weights(2))
    replica.bring(layout.weights(1))
    assert_holds(replica, layout.weights(1))


def test_versions_of_other_layouts_are_not_compared(layout, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_plain({"a": torch.ones(3)}.items(), {}, other)
    assert comparable(layout.weights(0), layout.weights(3))
    assert not comparable(other, layout.weights(1))


def test_the_shares_of_several_writers_make_one_delta(layout, tmp_path):
    base, target = layout.weights(0), layout.weights(1)
    (tmp_path / "whole").mkdir()
    (tmp_path / "shared").mkdir()
    alone = write_delta(base, target, tmp_path / "whole")
    shares = [write_delta(base, target, tmp_path / "shared", (rank, 2)) for rank in range(2)]
    assert shares[0] | shares[1] == alone and shares[0].keys().isdisjoint(shares[1])
