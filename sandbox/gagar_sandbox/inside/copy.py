"""Copying a tree, for hosts without overlay mounts."""

from __future__ import annotations

import os
import stat

CHUNK = 1 << 20


def copy_tree(source: str, target: str) -> None:
    """Folders, files, links and fifos with their modes and times; sockets, which nobody listens on, are left out."""
    folders = [(source, target)]
    for here, there in folders:
        for entry in os.scandir(here):
            status = entry.stat(follow_symlinks=False)
            path = os.path.join(there, entry.name)
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(path)
                folders.append((entry.path, path))
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(entry.path), path)
            elif stat.S_ISREG(status.st_mode):
                _copy_file(entry.path, path, status)
            elif stat.S_ISFIFO(status.st_mode):
                os.mkfifo(path, stat.S_IMODE(status.st_mode))
    for here, there in reversed(folders):  # a folder may be closed only when it is full
        status = os.stat(here)
        os.chmod(there, stat.S_IMODE(status.st_mode))
        os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_file(source: str, target: str, status: os.stat_result) -> None:
    with open(source, "rb", buffering=0) as read, open(target, "wb", buffering=0) as written:
        while os.sendfile(written.fileno(), read.fileno(), None, CHUNK):
            pass
        os.fchmod(written.fileno(), stat.S_IMODE(status.st_mode))
        os.utime(written.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
