"""All that one sandbox can write: a tmpfs, above those that snapshots have frozen."""

from __future__ import annotations

import os

from .kernel import NODEV, NOSUID, mount, unmount

HOME = "/run/gagar"
DISKS = f"{HOME}/disks"
INODE_BYTES = 4096  # of the disk for each file that there may be
LEAST_BYTES = 1 << 16  # to the kernel a size of 0 is none
LEAST_FILES = 1024


class Disk:
    """`size` bounds the bytes of everything, snapshots included. Without `overlay`, where each start copies what it begins with,
    it bounds the live files and the last snapshot, one by one."""

    def __init__(self, size: int, overlay: bool) -> None:
        self.overlay = overlay
        self.layers: list[str] = []
        self._left = size
        self._made = 0
        mount("tmpfs", DISKS, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
        self._add()

    def clear(self) -> None:
        unmount(self.live)
        self._add()

    def freeze(self) -> None:
        if self.overlay:
            found = os.statvfs(self.live)
            self._left -= (found.f_blocks - found.f_bfree) * found.f_frsize
        else:
            while self.layers:
                unmount(self.layers.pop())
        self.layers.append(self.live)
        self._add()

    def close(self) -> None:
        unmount(DISKS)

    def _add(self) -> None:
        self.live = f"{DISKS}/{self._made}"
        self._made += 1
        os.mkdir(self.live)
        size = max(self._left, LEAST_BYTES)
        files = max(size // INODE_BYTES, LEAST_FILES)
        mount("tmpfs", self.live, "tmpfs", NOSUID | NODEV, f"size={size},nr_inodes={files},mode=755")
