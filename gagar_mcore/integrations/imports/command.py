"""`gagar import`: files of other agents in, one file of records out, and what was refused said."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gagar_mcore.integrations.imports.chat import chat_data
from gagar_mcore.integrations.imports.data import SourceError
from gagar_mcore.integrations.imports.formats import FORMATS
from gagar_mcore.integrations.imports.read import Refusal, read_trajectories
from gagar_mcore.records.imported import ImportedTrajectory, SourceFormat
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import fsync_directory
from gagar_mcore.tracking.text import visible

FORMS: dict[str, Callable[[ImportedTrajectory], dict[str, Any]]] = {"records": to_plain, "messages": chat_data}


@dataclass(frozen=True, slots=True)
class Counts:
    imported: int
    refused: int


def run_import(sources: Sequence[Path], out: Path, form: str, format: str | None, max_mb: int) -> int:
    """`import_files`, refusals to standard error and counts to standard output; returns the exit code, 1 where nothing was
    imported. Raises OSError as that does."""
    kind = next((kind for kind in FORMATS if kind == format), None)
    counts = import_files(sources, out, form, kind, max_mb * 1_000_000, lambda line: print(_shown(line), file=sys.stderr))
    print(f"{counts.imported} imported, {counts.refused} refused" + (f"; {_shown(str(out))}" if counts.imported else ""))
    return 0 if counts.imported else 1


def import_files(
    sources: Sequence[Path], out: Path, form: str, format: SourceFormat | None, max_bytes: int, say: Callable[[str], None]
) -> Counts:
    """Write what can be read to `out`, a line each, and `say` why the rest cannot; `out` appears whole, and only where something
    was imported. `form` is one of `FORMS`; `format` is that of every file, None where their names tell. No record may be larger
    than `max_bytes`. Raises OSError where `out` exists or cannot be written."""
    if out.exists():
        raise FileExistsError(f"{out}: exists already; name a file that does not")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="ascii") as file:
            counts = _write(read_trajectories(sources, format, max_bytes), form, file, say)
            file.flush()
            os.fsync(file.fileno())
        if counts.imported:
            os.replace(temporary, out)
            fsync_directory(out.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return counts


def _write(found: Iterator[ImportedTrajectory | Refusal], form: str, file: TextIO, say: Callable[[str], None]) -> Counts:
    imported = refused = 0
    for item in found:
        line = item if isinstance(item, Refusal) else _line(item, form)
        if isinstance(line, Refusal):
            refused += 1
            say(str(line))
        else:
            imported += 1
            print(line, file=file)
    return Counts(imported, refused)


def _line(record: ImportedTrajectory, form: str) -> str | Refusal:
    try:
        return json.dumps(FORMS[form](record), allow_nan=False)
    except SourceError as error:
        return Refusal(record.source.file, record.source.line, str(error))


def _shown(text: str) -> str:
    return visible(text).replace("\n", "␊")
