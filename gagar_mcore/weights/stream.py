"""Safetensors files written one tensor after another, so that no more than one of them is in memory."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gagar_mcore.records.store import FileSum
from gagar_mcore.weights.codecs import TensorSpec
from gagar_mcore.weights.files import INDEX

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8"}
ALIGNMENT = 8


def shard_name(number: int, count: int) -> str:
    """`number` counts from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def plan_files(units: Iterable[Sequence[TensorSpec]], max_bytes: int) -> list[list[TensorSpec]]:
    """The tensors of each file, in order: a file takes whole units until the next would make it larger than `max_bytes`."""
    files: list[list[TensorSpec]] = []
    room = 0
    for unit in units:
        size = sum(spec.nbytes for spec in unit)
        if size > room or not files:
            files.append([])
            room = max_bytes
        files[-1] += unit
        room -= size
    return files


def write_index(files: Mapping[str, Sequence[TensorSpec]], directory: Path) -> None:
    """The index of files that lie, or will lie, in `directory`, by name."""
    total = sum(spec.nbytes for specs in files.values() for spec in specs)
    homes = {spec.name: name for name, specs in files.items() for spec in specs}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(homes.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=1))


def write_files(files: Mapping[Path, Sequence[TensorSpec]], tensors: Iterator[tuple[str, Tensor]]) -> dict[Path, FileSum]:
    """Write the next of `tensors` into the file after file that announces them, and read `tensors` to its end; returns the files'
    sums. Raises ValueError where they are others than announced."""
    with ThreadPoolExecutor(1) as hashing:
        sums = {path: _write_file(path, specs, tensors, hashing) for path, specs in files.items()}
    for name, _ in tensors:
        raise ValueError(f"{name}: was not announced")
    return sums


def _write_file(path: Path, specs: Sequence[TensorSpec], tensors: Iterator[tuple[str, Tensor]], hashing: Executor) -> FileSum:
    """Each tensor is hashed while it is written."""
    digest, size = hashlib.sha256(), 0
    contents = (_content(path, spec, *next(tensors, ("nothing", torch.empty(0)))) for spec in specs)
    with open(path, "wb") as file:
        for data in chain([memoryview(_header(specs))], contents):
            hashed = hashing.submit(digest.update, data)
            size += file.write(data)
            hashed.result()
    return size, digest.hexdigest()


def _content(path: Path, spec: TensorSpec, name: str, tensor: Tensor) -> memoryview:
    if spec != (given := TensorSpec(name, tuple(tensor.shape), tensor.dtype)):
        raise ValueError(f"{path}: {given} comes where {spec} was announced")
    return tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().data


def _header(specs: Sequence[TensorSpec]) -> bytes:
    """Eight bytes of length, little-endian, then names, types, shapes and places as JSON, filled up with spaces."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        start, end = end, end + spec.nbytes
        entries[spec.name] = {"dtype": TYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
    body = json.dumps(entries, separators=(",", ":")).encode()
    body += b" " * (-len(body) % ALIGNMENT)
    return len(body).to_bytes(8, "little") + body
