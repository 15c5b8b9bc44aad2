"""Trajectories of other agents, out of files: each a record, or the reason why it is none."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.integrations.imports.data import SourceError, parse
from gagar_mcore.integrations.imports.files import SUFFIXES, Piece, find_files, format_of, pieces, stem
from gagar_mcore.integrations.imports.formats import import_data
from gagar_mcore.records.imported import ImportedTrajectory, Source, SourceFormat


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file, or a line of it, that is no trajectory."""

    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        return ": ".join([self.file, *([f"line {self.line}"] if self.line else []), self.reason])


def read_trajectories(
    sources: Sequence[Path], format: SourceFormat | None = None, max_bytes: int = 256_000_000
) -> Iterator[ImportedTrajectory | Refusal]:
    """Every trajectory of the files, and of those in the folders, in order. Ids are of the content; where the same content comes
    again, `-2`, `-3` and so on are added."""
    seen: Counter[str] = Counter()
    for path in find_files(sources):
        kind = format or format_of(path)
        if path.is_symlink() and path not in sources:
            yield Refusal(str(path), None, "a link in a folder; name its target itself")
            continue
        if kind is None and path.is_file():
            yield Refusal(str(path), None, f"its name ends in none of {', '.join(SUFFIXES)}; say what it is with --format")
            continue
        try:
            yield from (_read(piece, kind or "openai", seen) for piece in pieces(path, kind == "openai", max_bytes))
        except OSError as error:
            yield Refusal(str(path), None, (error.strerror or str(error)).lower())


def _read(piece: Piece, kind: SourceFormat, seen: Counter[str]) -> ImportedTrajectory | Refusal:
    if piece.refused:
        return Refusal(str(piece.path), piece.line, piece.refused)
    digest = hashlib.sha256(piece.text).hexdigest()
    id, source = digest[:16], Source(str(piece.path), piece.line, digest)
    again = f"-{seen[id] + 1}" if seen[id] else ""
    try:
        record = import_data(parse(piece.text), kind, source, f"{id}{again}", stem(piece.path) if piece.line is None else "")
    except SourceError as error:
        return Refusal(source.file, source.line, str(error))
    seen[id] += 1
    return record
