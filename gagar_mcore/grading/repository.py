"""A bounded copy of a task's repository."""

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILES = 4000
MAX_FILE_BYTES = 1 << 20
MAX_BYTES = 1 << 25
SKIPPED = frozenset({".git", "__pycache__"})


@dataclass(frozen=True, slots=True)
class RepositoryCopy:
    """The copied files, as relative paths, and how many were left out: links, special files, and what exceeds the bounds."""

    files: tuple[str, ...]
    left_out: int


def copy_repository(source: Path, target: Path) -> RepositoryCopy:
    """Copy regular files of up to `MAX_FILE_BYTES`, by name, until `MAX_FILES` and `MAX_BYTES`; links are not followed."""
    copied: list[str] = []
    left_out, total = 0, 0
    target.mkdir()
    for path in _walk(source):
        status = path.lstat()
        fits = status.st_size <= MAX_FILE_BYTES and total + status.st_size <= MAX_BYTES and len(copied) < MAX_FILES
        if not (stat.S_ISREG(status.st_mode) and fits):
            left_out += 1
            continue
        name = path.relative_to(source)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name, follow_symlinks=False)
        copied.append(name.as_posix())
        total += status.st_size
    return RepositoryCopy(tuple(copied), left_out)


def _raise(error: OSError) -> None:
    raise error


def _walk(source: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(source, onerror=_raise):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = sorted(set(folders) - SKIPPED - set(links))
        yield from (Path(folder, name) for name in sorted([*files, *links]))
