"""Finding the place where this process may make control groups."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gagar_sandbox.cgroup import Cgroups

PROBE_BYTES = 64 << 20


def find_cgroups() -> Cgroups | None:
    """Groups that have been seen to take a process and its limits; None where there are none."""
    for candidate in _candidates():
        candidate.remove_stale()
        if _works(candidate):
            return candidate
    return None


def _works(groups: Cgroups) -> bool:
    """Try it on a process of our own."""
    try:
        leaf = groups.leaf(PROBE_BYTES, 2)
    except OSError:
        return False
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
            leaf.add(child.pid)
        return True
    except OSError:
        return False
    finally:
        leaf.remove()


def _candidates() -> Iterator[Cgroups]:
    """Version 2: our own group, then those above it, for a group with processes cannot limit its children. Version 1: our own."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controller: path for _, controllers, path in own for controller in controllers.split(",")}
    mounts = list(_mounts())
    for root, mount, kind, _ in mounts:
        if kind == "cgroup2" and "" in paths:
            folder = _below(mount, root, paths[""])
            for parent in (folder, *folder.parents):
                if parent.is_relative_to(mount):
                    yield Cgroups(2, (parent,))
    version_1 = {
        controller: _below(mount, root, paths[controller])
        for root, mount, kind, options in mounts
        for controller in ("memory", "pids")
        if kind == "cgroup" and controller in options and controller in paths
    }
    if len(version_1) == 2:
        yield Cgroups(1, tuple(version_1.values()))


def _mounts() -> Iterator[tuple[str, Path, str, list[str]]]:
    """Root, mount point, type and options of each mount of control groups."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind.startswith("cgroup"):
            yield root, Path(point), kind, options.split(",")


def _below(mount: Path, root: str, path: str) -> Path:
    """Where the group `path` is seen, in a mount that shows the hierarchy from `root` down."""
    relative = os.path.relpath(path, root)
    return mount if relative.startswith("..") else mount / relative
