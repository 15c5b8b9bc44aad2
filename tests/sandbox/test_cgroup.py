import os
import subprocess
from pathlib import Path

import pytest

from gagar_sandbox import owner
from gagar_sandbox.cgroup import Cgroups
from gagar_sandbox.cgroup_find import find_cgroups


@pytest.fixture
def groups() -> Cgroups:
    found = find_cgroups()
    if found is None:
        pytest.skip("no control group is writable here")
    return found


def test_a_leaf_counts_what_the_kernel_kills(groups: Cgroups):
    leaf = groups.leaf(32 << 20, 8)
    try:
        words = ["sh", "-c", 'read go; exec python3 -c "bytearray(64 << 20)"']
        with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
            leaf.add(child.pid)
            child.communicate(b"go\n", timeout=60)
        assert child.returncode == -9
        assert leaf.oom_kills() == 1
    finally:
        leaf.remove()
    assert not any(folder.exists() for folder in leaf.folders)


def test_groups_of_the_dead_are_removed_and_those_of_the_living_kept(groups: Cgroups):
    dead = owner.prefix().replace(f"-{os.getpid()}-", "-99999999-")
    stale = groups.parents[0] / f"{dead}0"
    stale.mkdir()
    leaf = groups.leaf(32 << 20, 8)
    try:
        groups.remove_stale()
        assert not stale.exists()
        assert leaf.folders[0].exists()
    finally:
        leaf.remove()


def test_what_is_written_for_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder stands in for the kernel's, where the machine has no version 2."""
    made = Path.mkdir

    def mkdir(folder: Path) -> None:
        made(folder)
        for name in ("cgroup.procs", "memory.max", "memory.swap.max", "pids.max"):
            (folder / name).touch()
        (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    leaf = Cgroups(2, (tmp_path,)).leaf(1000, 7)
    leaf.add(42)
    wanted = {"memory.max": "1000", "memory.swap.max": "0", "pids.max": "7", "cgroup.procs": "42"}
    assert {name: (leaf.folders[0] / name).read_text() for name in wanted} == wanted
    assert leaf.oom_kills() == 2


def test_a_folder_without_limits_is_no_control_group(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no memory or pids limit"):
        Cgroups(2, (tmp_path,)).leaf(1000, 7)
    assert list(tmp_path.iterdir()) == []
