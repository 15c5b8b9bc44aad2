import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gagar_mcore.records.store import (
    MANIFEST,
    RecordError,
    publish_directory,
    publish_json,
    read_json,
    read_manifest,
    set_aside_stale,
    sweep_temporaries,
)


def fill(directory: Path) -> dict[str, int]:
    (directory / "sub").mkdir()
    (directory / "sub" / "a.bin").write_bytes(b"abc")
    (directory / "b.txt").write_text("text")
    return {"step": 3}


def test_json_comes_back_with_its_checksum_verified(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    publish_json(path, {"x": [1, 2.5, "\udcff"]}, epoch=2)
    assert read_json(path, min_epoch=2) == {"x": [1, 2.5, "\udcff"]}
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"epoch":1,"sha256":"0","record":"{}"}'])
def test_damaged_json_is_refused_by_name(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(damage)
    with pytest.raises(RecordError, match=r"record\.json"):
        read_json(path)


def test_a_flipped_byte_in_a_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    publish_json(path, {"reward": 0}, epoch=1)
    path.write_text(path.read_text().replace(r"\"reward\":0", r"\"reward\":1"))
    with pytest.raises(RecordError, match="checksum"):
        read_json(path)


def test_json_of_a_lower_epoch_is_refused(tmp_path: Path) -> None:
    publish_json(tmp_path / "r.json", {}, epoch=1)
    with pytest.raises(RecordError, match="epoch 1"):
        read_json(tmp_path / "r.json", min_epoch=2)


def test_numbers_that_are_not_finite_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        publish_json(tmp_path / "r.json", {"loss": float("nan")}, epoch=1)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_appears_with_its_manifest(tmp_path: Path) -> None:
    published = publish_directory(tmp_path / "batch", "batch", 4, fill)
    manifest = read_manifest(tmp_path / "batch", "batch", min_epoch=4, verify=True)
    assert manifest == published
    assert manifest.meta == {"step": 3}
    assert set(manifest.files) == {"sub/a.bin", "b.txt"}


def test_equal_contents_have_equal_digests_whatever_the_epoch(tmp_path: Path) -> None:
    first = publish_directory(tmp_path / "a", "weights", 1, fill)
    second = publish_directory(tmp_path / "b", "weights", 2, fill)
    assert first.digest == second.digest


def test_nothing_appears_when_filling_or_the_fence_fails(tmp_path: Path) -> None:
    def broken(directory: Path) -> dict[str, int]:
        (directory / "half").write_text("x")
        raise RuntimeError("stop")

    def fence() -> None:
        raise RuntimeError("fenced")

    with pytest.raises(RuntimeError, match="stop"):
        publish_directory(tmp_path / "batch", "batch", 1, broken)
    with pytest.raises(RuntimeError, match="fenced"):
        publish_directory(tmp_path / "batch", "batch", 1, fill, fence)
    assert list(tmp_path.iterdir()) == []


def test_what_is_published_is_never_replaced(tmp_path: Path) -> None:
    publish_directory(tmp_path / "batch", "batch", 1, fill)
    with pytest.raises(FileExistsError):
        publish_directory(tmp_path / "batch", "batch", 2, lambda directory: {})
    assert read_manifest(tmp_path / "batch", "batch").epoch == 1


@pytest.mark.parametrize(
    ("kind", "min_epoch", "message"), [("weights", 0, "holds batch"), ("batch", 5, "epoch 4"), ("batch", 0, "missing or damaged")]
)
def test_unfit_directories_are_refused(tmp_path: Path, kind: str, min_epoch: int, message: str) -> None:
    publish_directory(tmp_path / "batch", "batch", 4, fill)
    if "damaged" in message:
        (tmp_path / "batch" / "b.txt").write_text("longer text")
    with pytest.raises(RecordError, match=message):
        read_manifest(tmp_path / "batch", kind, min_epoch)


def test_damage_that_keeps_the_size_is_found_by_verifying(tmp_path: Path) -> None:
    publish_directory(tmp_path / "batch", "batch", 1, fill)
    (tmp_path / "batch" / "b.txt").write_text("texx")
    read_manifest(tmp_path / "batch", "batch")
    with pytest.raises(RecordError, match=r"b\.txt"):
        read_manifest(tmp_path / "batch", "batch", verify=True)


def test_a_stale_directory_is_set_aside_and_a_current_one_stays(tmp_path: Path) -> None:
    publish_directory(tmp_path / "batch", "batch", 1, fill)
    set_aside_stale(tmp_path / "batch", "batch", min_epoch=1)
    assert (tmp_path / "batch" / MANIFEST).is_file()
    set_aside_stale(tmp_path / "batch", "batch", min_epoch=2)
    assert not (tmp_path / "batch").exists()
    assert len(list(tmp_path.glob("refused-batch-*"))) == 1


WRITER = """
import sys, time
from pathlib import Path
from gagar_mcore.records.store import publish_directory
def fill(directory):
    (directory / "part").write_bytes(b"x" * 1000)
    print("filling", flush=True)
    time.sleep(60)
    return {}
publish_directory(Path(sys.argv[1]), "batch", 1, fill)
"""


def test_a_killed_writer_leaves_nothing_that_a_reader_trusts(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "batch")], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "filling\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait(timeout=10)
    writer.stdout.close()
    with pytest.raises(RecordError, match="not published"):
        read_manifest(tmp_path / "batch", "batch")
    assert len(list(tmp_path.iterdir())) == 1
    sweep_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_is_plain_json(tmp_path: Path) -> None:
    publish_directory(tmp_path / "batch", "batch", 1, fill)
    assert json.loads((tmp_path / "batch" / MANIFEST).read_text())["kind"] == "batch"


def test_a_deletion_cut_short_leaves_room_to_publish_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    publish_directory(path, "weights", 1, fill)
    script = """
import os, pathlib, shutil, signal, sys
from gagar_mcore.records import store
shutil.rmtree = lambda path: os.kill(os.getpid(), signal.SIGKILL)
store.unpublish_directory(pathlib.Path(sys.argv[1]))
"""
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == -signal.SIGKILL
    publish_directory(path, "weights", 2, fill)
    sweep_temporaries(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["weights"]
