import os
from pathlib import Path

from gagar_sandbox import LocalPool, owner


def test_what_the_dead_and_earlier_processes_left_is_told_from_what_is_in_use(tmp_path: Path):
    mine = owner.prefix()
    _, _, namespace, pid, started, _ = mine.split("-")
    left = [f"gagar-sandboxes-{namespace}-99999999-{started}-a", f"gagar-sandboxes-{namespace}-{pid}-{int(started) - 1}-b"]
    kept = [f"{mine}c", f"gagar-sandboxes-1-99999999-{started}-d", "gagar-sandboxes-e", "other"]
    for name in (*left, *kept):
        (tmp_path / name).mkdir()
    assert sorted(path.name for path in owner.left_behind(tmp_path)) == sorted(left)


def test_a_pool_removes_the_folders_of_killed_ones_and_its_own(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / owner.prefix().replace(f"-{os.getpid()}-", "-99999999-")).mkdir()
    pool = LocalPool()
    assert [path.name.startswith(owner.prefix()) for path in tmp_path.iterdir()] == [True]
    pool._host.close()
    assert list(tmp_path.iterdir()) == []
