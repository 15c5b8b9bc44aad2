"""A folder of this machine as what `gagar-init` puts into a pod, and as the digest that it must then have there."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gagar_sandbox.inside.frames import pack

EMPTY = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class Tree:
    """The stream of `sandbox/image/src/trees.h`, end included, and the digest."""

    data: bytes
    digest: str

    @classmethod
    def read(cls, folder: Path) -> "Tree":
        """Folders, plain files and links; the owner may read all of them. Anything else is left out. Raises OSError."""
        data = b"".join(_below(os.fsencode(folder), b""))
        return cls(data + pack(b"end"), hashlib.sha256(data).hexdigest())


def _below(folder: bytes, prefix: bytes) -> Iterator[bytes]:
    for name in sorted(os.listdir(folder)):
        path, inside = os.path.join(folder, name), os.path.join(prefix, name)
        status = os.lstat(path)
        permissions = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISDIR(status.st_mode):
            yield _header(b"d", permissions | 0o700, inside, 0)
            yield from _below(path, inside)
        elif stat.S_ISREG(status.st_mode):
            contents = _contents(path)
            yield _header(b"f", permissions | 0o400, inside, len(contents)) + contents
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)
            yield _header(b"l", 0o777, inside, len(target)) + target


def _contents(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _header(kind: bytes, permissions: int, path: bytes, size: int) -> bytes:
    return pack(kind, b"%o" % permissions, path, b"%d" % size)
