"""Files of trajectories, read one record at a time and never more than a bound at once."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gagar_mcore.records.imported import SourceFormat

SUFFIXES: dict[str, SourceFormat] = {".traj": "swe-agent", ".traj.json": "mini-swe-agent", ".jsonl": "openai"}


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of one record and where they stand; `refused` says why they were not read."""

    path: Path
    line: int | None
    text: bytes
    refused: str | None = None


def format_of(path: Path) -> SourceFormat | None:
    """By its name; None where that does not tell."""
    return next((kind for suffix, kind in SUFFIXES.items() if path.name.endswith(suffix)), None)


def stem(path: Path) -> str:
    """The name without the suffix of its format: what agents call the task."""
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), path.suffix)
    return path.name.removesuffix(suffix)


def find_files(sources: Sequence[Path]) -> Iterator[Path]:
    """The files, and those below the folders whose names tell a format, in the order of their names; links to folders are not
    followed. A folder without any, or one that cannot be read, is given back itself."""
    for source in sources:
        yield from (_below(source) or [source]) if source.is_dir() else [source]


def _below(folder: Path) -> list[Path]:
    found: list[Path] = []
    for parent, _, names in os.walk(folder, onerror=lambda error: found.append(Path(error.filename))):
        found.extend(path for path in (Path(parent, name) for name in names) if format_of(path))
    return sorted(found)


def pieces(path: Path, lines: bool, max_bytes: int) -> Iterator[Piece]:
    """What a file holds: one record, or one a line where it has `lines`; blank lines hold none. Raises OSError."""
    if path.is_dir():
        os.listdir(path)
        yield Piece(path, None, b"", f"holds no file whose name ends in {', '.join(SUFFIXES)}")
        return
    if path.exists() and not path.is_file():
        yield Piece(path, None, b"", "not a regular file")
        return
    with open(path, "rb") as file:
        if lines:
            yield from _lines(path, file, max_bytes)
        else:
            yield _piece(path, None, file.read(max_bytes + 1), max_bytes)


def _lines(path: Path, file: BinaryIO, max_bytes: int) -> Iterator[Piece]:
    number, found = 0, False
    while text := file.readline(max_bytes + 1):
        number += 1
        if text.strip():
            found = True
            yield _piece(path, number, text, max_bytes)
        while not text.endswith(b"\n") and text:
            text = file.readline(max_bytes + 1)
    if not found:
        yield Piece(path, None, b"", "empty")


def _piece(path: Path, line: int | None, text: bytes, max_bytes: int) -> Piece:
    if len(text) > max_bytes:
        return Piece(path, line, b"", f"larger than {max_bytes:,} bytes; allow more with --max-mb")
    return Piece(path, line, text)
