"""Limits on everything inside one sandbox together, by a control group of its own; version 1 or 2, whichever is writable."""

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from gagar_sandbox import owner

REMOVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Leaf:
    """The control group of one sandbox: a folder in each hierarchy that counts something."""

    folders: tuple[Path, ...]

    def add(self, pid: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed here for want of memory."""
        names = ("memory.events", "memory.oom_control")
        files = [folder / name for folder in self.folders for name in names if (folder / name).exists()]
        return sum(int(count) for file in files for count in re.findall(r"^oom_kill (\d+)$", file.read_text(), re.M))

    def remove(self) -> None:
        """Free it once its last process has gone. What will not go is left to the next pool's `remove_stale`."""
        deadline = time.monotonic() + REMOVE_S
        for folder in self.folders:
            while not _remove(folder) and time.monotonic() < deadline:
                time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where this process may make control groups."""

    version: int
    parents: tuple[Path, ...]

    def leaf(self, memory_bytes: int, processes: int) -> Leaf:
        """A new group. Raises OSError where the system refuses it."""
        name = f"{owner.prefix()}{secrets.token_hex(8)}"  # several pools of one process share the parents
        leaf = Leaf(tuple(parent / name for parent in self.parents))
        try:
            for folder in leaf.folders:
                folder.mkdir()
            _set(leaf, memory_bytes, processes)
        except BaseException:
            for folder in leaf.folders:
                _remove(folder)
            raise
        return leaf

    def remove_stale(self) -> None:
        """Remove the groups of processes that died without doing so."""
        for parent in self.parents:
            for folder in owner.left_behind(parent):
                _remove(folder)


def _set(leaf: Leaf, memory_bytes: int, processes: int) -> None:
    wanted = {"memory.max": memory_bytes, "memory.limit_in_bytes": memory_bytes, "pids.max": processes}
    without_swap = {"memory.swap.max": 0, "memory.memsw.limit_in_bytes": memory_bytes}
    found = 0
    for folder in leaf.folders:
        for name, value in (wanted | without_swap).items():
            if (folder / name).exists():
                (folder / name).write_text(str(value))
                found += name in wanted
    if found != 2:
        raise FileNotFoundError(f"no memory or pids limit in {leaf.folders[0]}")


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
