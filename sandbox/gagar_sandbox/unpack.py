"""Laying the layers of an image over each other in a folder, as any user. Whatever an archive holds, nothing outside changes."""

import os
import shutil
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from gagar_sandbox.archive import Hashed, ImageRefused, Member

WHITEOUT, OPAQUE, RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
LINKS = 40


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that all layers of an image may hold: bytes of archive and of files, each; entries; folders in a path."""

    bytes: int = 64 << 30
    entries: int = 4_000_000
    depth: int = 128


class Unpacker:
    """`apply` each layer, from the lowest. Folders and files are the caller's own, without special bits."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self.left_out = 0
        self._root = str(root)
        self._bounds = bounds
        self._read = self._written = self._entries = 0

    def apply(self, layer: Hashed) -> None:
        """Raises ImageRefused, tarfile.TarError."""
        written: set[str] = set()
        counted = cast(IO[bytes], _Counted(layer, self))
        with tarfile.open(fileobj=counted, mode="r|", tarinfo=Member) as tar:
            for member in tar:
                self._entries += 1
                if self._entries > self._bounds.entries:
                    raise ImageRefused(f"more than {self._bounds.entries} entries")
                self._add(tar, member, written)

    def count_read(self, size: int) -> None:
        self._read += size
        if self._read > self._bounds.bytes:
            raise ImageRefused(f"more than {self._bounds.bytes} bytes of layers")

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, written: set[str]) -> None:
        if "\0" in member.name + member.linkname or member.size < 0:
            raise ImageRefused(f"{member.name[:200]!r}: no entry of an archive")
        parts = self._parts(member.name)
        if not parts:
            return  # the root itself
        parent = self._inside(parts[:-1])
        if not _is_folder(parent):
            _remove(parent)
            os.mkdir(parent)
        name = parts[-1]
        if name == OPAQUE:
            self._empty(parent, written)
        elif name.startswith(RESERVED):
            pass  # the bookkeeping of a storage driver
        elif name.startswith(WHITEOUT):
            _remove(f"{parent}/{_hidden(name)}")
        else:
            path = f"{parent}/{name}"
            self._make(tar, member, path)
            while path != self._root and path not in written:
                written.add(path)
                path = os.path.dirname(path)

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.isdir():
            if not _is_folder(path):
                _remove(path)
                os.mkdir(path)
            os.chmod(path, member.mode & 0o777 | 0o700)  # later layers write in it
            return
        source = self._inside(self._parts(member.linkname)) if member.islnk() else ""
        if member.islnk() and not stat.S_ISREG(os.lstat(source).st_mode if os.path.lexists(source) else 0):
            raise ImageRefused(f"{member.name}: a hard link to {member.linkname}, which is no file of the image")
        if source == path:
            return
        _remove(path)
        if member.islnk():
            os.link(source, path)
        elif member.issym():
            os.symlink(member.linkname, path)
        elif member.isreg():
            self._write(tar, member, path)
        else:
            self.left_out += 1

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        self._written += member.size
        if self._written > self._bounds.bytes:
            raise ImageRefused(f"files of more than {self._bounds.bytes} bytes")
        data = tar.extractfile(member)
        assert data is not None
        with open(path, "xb") as file:
            shutil.copyfileobj(data, file)
        os.chmod(path, member.mode & 0o777 | 0o400)
        os.utime(path, (max(0, member.mtime), max(0, member.mtime)))

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in PurePosixPath(name).parts if part != "/"]
        if ".." in parts or len(parts) > self._bounds.depth:
            raise ImageRefused(f"{name[:200]!r}: a path that leads out, or deeper than {self._bounds.depth} folders")
        return parts

    def _inside(self, parts: list[str]) -> str:
        """Where the path leads if this root is all there is; missing folders on the way are made. Links are followed, and none
        leads out."""
        here: list[str] = []
        todo = list(reversed(parts))
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                here = here[:-1]
                continue
            path = "/".join((self._root, *here, part))
            if os.path.islink(path):
                links += 1
                target = os.readlink(path)
                here = [] if target.startswith("/") else here
                todo += [word for word in reversed(target.split("/")) if word not in ("", ".")]
                if links > LINKS or len(here) + len(todo) > self._bounds.depth:
                    raise ImageRefused(f"{'/'.join(parts)[:200]!r}: too many links")
                continue
            if todo and not _is_folder(path):
                _remove(path)
                os.mkdir(path)
            here.append(part)
        return "/".join((self._root, *here))

    def _empty(self, folder: str, written: set[str]) -> None:
        """An opaque folder hides what lower layers have in it, and nothing of its own layer."""
        if not _is_folder(folder):
            return
        for entry in list(os.scandir(folder)):
            if entry.path not in written:
                _remove(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                self._empty(entry.path, written)


class _Counted:
    def __init__(self, source: Hashed, unpacker: Unpacker) -> None:
        self._source = source
        self._unpacker = unpacker

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._unpacker.count_read(len(data))
        return data


def _hidden(name: str) -> str:
    hidden = name.removeprefix(WHITEOUT)
    if hidden in ("", ".", ".."):
        raise ImageRefused(f"{name!r} hides no file")
    return hidden


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: str) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
