"""What changed between two safetensors files of one layout, as a smaller file: for each tensor that changed, the places of its
values that did, and old and new value XORed. It is a zip of numpy arrays, `NAME/gaps.npy` and `NAME/values.npy`, each with a CRC.

A place is told by its gap, how many values lie between it and the place before. The largest number of the gaps' type stands for
that many values without a change, and no place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "I8": 1}
GAPS: tuple[Any, ...] = (np.uint8, np.uint16, np.uint32)
CHUNK = 1 << 24  # values that are compared at a time
FAST = 1  # of deflate
Words = NDArray[np.unsignedinteger[Any]]


def read_header(path: Path) -> bytes:
    """Names, types, shapes and places of a file's tensors. Raises ValueError where it is cut short."""
    with open(path, "rb") as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        if size > path.stat().st_size - 8:
            raise ValueError(f"{path}: damaged, its header is longer than the file")
        return length + file.read(size)


def write_changes(base: Path, target: Path, changes: Path) -> None:
    """Raises ValueError where the files are laid out differently."""
    if read_header(base) != read_header(target):
        raise ValueError(f"{target}: is laid out otherwise than {base}")
    old = dict(_tensors(base, "r"))
    with ZipFile(changes, "w", ZIP_DEFLATED, compresslevel=FAST) as archive:
        for name, new in _tensors(target, "r"):
            places = _differing(old[name], new)
            if len(places):
                _write(archive, f"{name}/gaps.npy", encode_places(places))
                _write(archive, f"{name}/values.npy", old[name][places] ^ new[places])


def apply_changes(path: Path, changes: Path) -> None:
    """Make the target of the base at `path`, in place. Applied to another file it makes neither, so compare a checksum. Raises
    ValueError where `changes` are damaged or of a file of another layout."""
    try:
        tensors = dict(_tensors(path, "r+"))
        with ZipFile(changes) as archive:
            for name in (entry.removesuffix("/gaps.npy") for entry in archive.namelist() if entry.endswith("/gaps.npy")):
                places = decode_places(_read(archive, f"{name}/gaps.npy"))
                tensors[name][places] ^= _read(archive, f"{name}/values.npy")
    except (AttributeError, BadZipFile, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{changes}: damaged, or not of {path}: {error}") from error


def encode_places(places: NDArray[np.int64]) -> Words:
    """Of ascending places, in the type that takes the fewest bytes."""
    gaps = np.diff(places, prepend=-1) - 1
    kind = min(GAPS, key=lambda kind: int((gaps // np.iinfo(kind).max + 1).sum()) * np.dtype(kind).itemsize)
    largest = np.iinfo(kind).max
    skips, rest = np.divmod(gaps, largest)
    encoded = np.full(len(gaps) + int(skips.sum()), largest, kind)
    encoded[np.cumsum(skips + 1) - 1] = rest
    return cast(Words, encoded)


def decode_places(encoded: Words) -> NDArray[np.int64]:
    is_place = encoded != np.iinfo(encoded.dtype).max
    return (np.cumsum(encoded.astype(np.int64) + is_place) - 1)[is_place]


def _differing(old: Words, new: Words) -> NDArray[np.int64]:
    starts = range(0, len(new), CHUNK)
    found = [np.flatnonzero(old[start : start + CHUNK] != new[start : start + CHUNK]) + start for start in starts]
    return np.concatenate([*found, np.zeros(0, np.int64)])


def _tensors(path: Path, mode: Any) -> Iterator[tuple[str, Words]]:
    """Each tensor as unsigned integers of its values' width, mapped from the file."""
    header = read_header(path)
    content = np.memmap(path, np.uint8, mode, offset=len(header)) if path.stat().st_size > len(header) else np.zeros(0, np.uint8)
    for name, entry in json.loads(header[8:]).items():
        if name != "__metadata__":
            start, stop = entry["data_offsets"]
            yield name, content[start:stop].view(f"<u{WIDTHS[entry['dtype']]}")


def _write(archive: ZipFile, name: str, array: Words) -> None:
    with archive.open(name, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def _read(archive: ZipFile, name: str) -> Words:
    with archive.open(name) as file:
        return cast(Words, np.lib.format.read_array(file, allow_pickle=False))
