"""Publishing: a record appears whole or not at all, carries the epoch of its writer, and is trusted only through its checksum."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
FileSum = tuple[int, str]  # size in bytes, sha256


class RecordError(RuntimeError):
    """A record is missing, damaged, or written by a process that no longer owned the run."""


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_file(path: Path, data: bytes) -> None:
    """Write or replace one file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    _write_durably(temporary, data)
    os.replace(temporary, path)
    fsync_directory(path.parent)


def publish_json(path: Path, record: Any, epoch: int) -> None:
    """Write one JSON record atomically inside an envelope `{epoch, sha256, record}`; `record` is plain JSON data."""
    body = json.dumps(record, separators=(",", ":"), allow_nan=False)
    envelope = json.dumps({"epoch": epoch, "sha256": hashlib.sha256(body.encode()).hexdigest(), "record": body})
    write_file(path, envelope.encode())


def read_json(path: Path, min_epoch: int = 0) -> Any:
    """The record of `publish_json`. Raises RecordError where it is absent, damaged, or of an epoch below `min_epoch`."""
    try:
        envelope = json.loads(path.read_text())
        epoch, digest, body = envelope["epoch"], envelope["sha256"], envelope["record"]
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such record") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: not a record of this program") from error
    if hashlib.sha256(body.encode()).hexdigest() != digest:
        raise RecordError(f"{path}: checksum does not match, the file is damaged")
    if epoch < min_epoch:
        raise RecordError(f"{path}: written in epoch {epoch}, after epoch {min_epoch} had taken over")
    return json.loads(body)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a published directory holds: `files` maps each relative path to (size in bytes, sha256)."""

    kind: str
    epoch: int
    meta: dict[str, Any]
    files: dict[str, FileSum]

    @property
    def digest(self) -> str:
        """One hash over the contents: equal for equal files, whatever the epoch or the metadata."""
        lines = [f"{name} {size} {sha}" for name, (size, sha) in sorted(self.files.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def file_sum(path: Path) -> FileSum:
    return path.stat().st_size, file_sha256(path)


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _scan(directory: Path, known: Mapping[str, FileSum] | None = None) -> dict[str, FileSum]:
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST)
    names = {str(p.relative_to(directory)): p for p in paths}
    return {name: (known or {}).get(name) or file_sum(p) for name, p in names.items()}


def directory_digest(directory: Path, known: Mapping[str, FileSum] | None = None) -> str:
    """The digest that a manifest of these files would have. `known`: sums of files that others have made already."""
    return Manifest("", 0, {}, _scan(directory, known)).digest


def publish_directory(
    path: Path, kind: str, epoch: int, fill: Callable[[Path], dict[str, Any]], fence: Callable[[], None] = lambda: None
) -> Manifest:
    """Publish a directory whole or not at all. `fill(temporary)` writes the files and returns the manifest's metadata;
    `fence()` is called right before the rename and raises where the writer no longer owns the run.
    Raises FileExistsError where `path` is already published."""
    temporary = begin_directory(path)
    try:
        return finish_directory(temporary, path, kind, epoch, fill(temporary), fence)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def begin_directory(path: Path) -> Path:
    """An empty directory beside `path` to write the files into; `finish_directory` publishes it, or the caller deletes it."""
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def finish_directory(
    temporary: Path,
    path: Path,
    kind: str,
    epoch: int,
    meta: dict[str, Any],
    fence: Callable[[], None],
    known: Mapping[str, FileSum] | None = None,
) -> Manifest:
    """Publish what lies in `temporary`, see `publish_directory`. `known`: sums of files that others have made already."""
    manifest = Manifest(kind, epoch, meta, _scan(temporary, known))
    for name in manifest.files:
        with open(temporary / name, "rb") as file:
            os.fsync(file.fileno())
    body = {"kind": kind, "epoch": epoch, "meta": manifest.meta, "files": manifest.files}
    _write_durably(temporary / MANIFEST, json.dumps(body, indent=1, allow_nan=False).encode())
    for folder in {p.parent for p in temporary.rglob("*")}:
        fsync_directory(folder)
    fence()
    if path.exists():
        raise FileExistsError(f"{path} is already published")
    os.rename(temporary, path)
    fsync_directory(path.parent)
    return manifest


def unpublish_directory(path: Path) -> None:
    """Delete a published directory. Killed within, it leaves nothing at `path`: a restart may have to publish there again."""
    temporary = _temporary(path)
    os.rename(path, temporary)
    shutil.rmtree(temporary)


def read_manifest(path: Path, kind: str, min_epoch: int = 0, verify: bool = False, share: tuple[int, int] = (0, 1)) -> Manifest:
    """The manifest of a published directory. Sizes are always checked, checksums where `verify` is set; of n processes that
    divide the files among themselves for that, number i has the share `(i, n)`.
    Raises RecordError where the directory is absent, damaged, of another kind, or of an epoch below `min_epoch`."""
    try:
        data = json.loads((path / MANIFEST).read_text())
        files = {name: (int(size), str(sha)) for name, (size, sha) in data["files"].items()}
        manifest = Manifest(data["kind"], int(data["epoch"]), data["meta"], files)
    except FileNotFoundError as error:
        raise RecordError(f"{path}: not published") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path / MANIFEST}: not a manifest of this program") from error
    if manifest.kind != kind:
        raise RecordError(f"{path}: holds {manifest.kind}, expected {kind}")
    if manifest.epoch < min_epoch:
        raise RecordError(f"{path}: written in epoch {manifest.epoch}, after epoch {min_epoch} had taken over")
    for number, (name, (size, sha)) in enumerate(manifest.files.items()):
        file, hashed = path / name, verify and number % share[1] == share[0]
        if not file.is_file() or file.stat().st_size != size or (hashed and file_sha256(file) != sha):
            raise RecordError(f"{file}: missing or damaged, does not match {MANIFEST}")
    return manifest


def set_aside_stale(path: Path, kind: str, min_epoch: int) -> None:
    """Make room at `path` where a writer of an epoch below `min_epoch` has published there; leave anything else."""
    if not (path / MANIFEST).is_file():
        return
    try:
        read_manifest(path, kind, min_epoch)
    except RecordError:
        os.rename(path, path.with_name(f"refused-{path.name}-{time.time_ns()}"))


def sweep_temporaries(root: Path) -> None:
    """Remove what killed writers left half-written below `root`. Only the owner of the run may call it."""
    for path in sorted(root.rglob(".*.tmp"), reverse=True):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
