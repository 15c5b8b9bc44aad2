"""A trainer killed with -9 and started again comes to the same bytes; what cannot be made again opens a new lineage."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ENVIRONMENT, STEPS, TORCHRUN, make_run, publish_batches, random_batch
from stored import read_stored, write_plain

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import MANIFEST, publish_directory, read_json, read_manifest
from gagar_mcore.weights.files import read_companions

pytestmark = pytest.mark.kills


def start(layout: RunLayout) -> subprocess.Popen[bytes]:
    command = [*TORCHRUN, "--nproc-per-node=2", "-m", "gagar_mcore.trainer.main", str(layout.root), "--epoch", "1"]
    with open(layout.root / "log", "ab") as log:
        return subprocess.Popen(command, env=ENVIRONMENT, stderr=log)


def log_tail(layout: RunLayout) -> str:
    return (layout.root / "log").read_text()[-4000:]


def kill_when(layout: RunLayout, seen: Callable[[], object]) -> None:
    """Start the trainer, kill its launcher as soon as `seen`, and wait until no rank is left."""
    process = start(layout)
    wait_for(lambda: seen() or process.poll() is not None)
    assert process.poll() is None, log_tail(layout)
    process.kill()
    process.wait()
    wait_for(lambda: not ranks_of(layout))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 170
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def ranks_of(layout: RunLayout) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if str(layout.root).encode() in command:
            found.append(entry.name)
    return found


def weight_digests(layout: RunLayout, lineage: int = 0) -> dict[str, str]:
    paths = (layout.root / "weights").glob(f"{lineage}-*")
    return {path.name.split("-")[1]: read_manifest(path, "weights", verify=True).digest for path in paths}


@pytest.fixture(scope="module")
def undisturbed(on_ranks):
    return on_ranks.run


def test_every_step_publishes_weights_and_metrics(undisturbed):
    digests = weight_digests(undisturbed)

    assert sorted(digests) == [f"{version:06d}" for version in range(STEPS + 1)]
    assert len(set(digests.values())) == STEPS + 1
    assert (undisturbed.weights(STEPS) / "tokenizer.json").read_bytes() == b"{}"
    metrics = [read_json(undisturbed.step_metrics(step, "train")) for step in range(1, STEPS + 1)]
    assert [m["train/lr"] for m in metrics] == [0.5e-3, 1e-3, 1e-3, 1e-3]
    assert [m["train/tokens"] for m in metrics] == [len(random_batch(step).tokens) for step in range(1, STEPS + 1)]
    assert all(m["train/grad_norm"] > 0 for m in metrics)
    assert {path.name for path in (undisturbed.root / "checkpoints").iterdir()} == {"0-000002", "0-000004"}


def test_the_frozen_router_stays_as_it_was_loaded(undisturbed):
    before, after = (read_stored(undisturbed.weights(version)) for version in (0, STEPS))

    assert {name for name in before if before[name].equal(after[name])} == {name for name in before if ".mlp.gate." in name}


@pytest.mark.timeout(600)
def test_kills_change_no_byte_and_a_difference_opens_a_lineage(undisturbed, tmp_path):
    expected = weight_digests(undisturbed)
    layout = make_run(tmp_path / "run")
    publish_batches(layout, 1, 2, 3)
    kill_when(layout, lambda: list((layout.root / "checkpoints").glob(".0-000002.*.tmp/*")))  # in mid-save
    assert not layout.checkpoint(2).exists()
    untouched = (layout.weights(1) / MANIFEST).stat().st_ino

    kill_when(layout, lambda: (layout.weights(3) / MANIFEST).exists())  # while it waits for a batch
    assert layout.checkpoint(2).is_dir()
    assert (layout.weights(1) / MANIFEST).stat().st_ino == untouched
    assert weight_digests(layout) == {version: expected[version] for version in list(expected) if version < "000004"}

    alter_weights(layout, 3)
    add_damaged_checkpoint(layout, 3)
    publish_batches(layout, 4)
    assert start(layout).wait(timeout=170) == 0, log_tail(layout)
    assert current_lineage(layout) == 1
    assert json.loads((layout.root / "lineage.json").read_text())["from_version"] == 3
    assert weight_digests(layout, lineage=1) == {version: expected[version] for version in ("000003", "000004")}
    assert layout.checkpoint(STEPS, lineage=1).is_dir()


def alter_weights(layout: RunLayout, version: int) -> None:
    path = layout.weights(version)
    tensors, companions = read_stored(path), read_companions(path)
    tensors["model.norm.weight"] += 1e-6
    shutil.rmtree(path)
    publish_directory(path, "weights", 1, lambda directory: write_plain(tensors.items(), companions, directory) or {})


def add_damaged_checkpoint(layout: RunLayout, step: int) -> None:
    path = layout.checkpoint(step)
    shutil.copytree(layout.checkpoint(2), path)
    shard = next(path.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
