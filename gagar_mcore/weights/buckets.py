"""Published tensors in buckets: several of them as the bytes of one flat tensor, the unit in which engines are sent weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gagar_mcore.weights.codecs import TensorSpec
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.stream import TYPES

BUCKET_BYTES = 1 << 28
DTYPES = {name: dtype for dtype, name in TYPES.items()}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors one behind the other, those of wider values first, so that each lies at a multiple of its width."""

    specs: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)

    def spans(self) -> Iterator[tuple[TensorSpec, int, int]]:
        """Each tensor with the bytes that it takes."""
        ends = accumulate(spec.nbytes for spec in self.specs)
        return ((spec, end - spec.nbytes, end) for spec, end in zip(self.specs, ends, strict=True))

    def description(self) -> dict[str, Any]:
        """As SGLang takes it."""
        return {
            "names": [spec.name for spec in self.specs],
            "dtypes": [str(spec.dtype).removeprefix("torch.") for spec in self.specs],
            "shapes": [list(spec.shape) for spec in self.specs],
            "load_format": "flattened_bucket",
        }

    def fill(self, files: TensorFiles, flat: Tensor) -> Tensor:
        """Read the tensors into the first `nbytes` of `flat`, uint8; returns these."""
        for spec, start, stop in self.spans():
            flat[start:stop] = files.read(spec.name).flatten().view(torch.uint8)
        return flat[: self.nbytes]


def plan_buckets(files: TensorFiles, max_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """All tensors, in the same buckets whoever plans them. One that is larger than `max_bytes` has a bucket of its own."""
    specs = [TensorSpec(name, files.shape(name), _dtype(files, name)) for name in sorted(files.names)]
    buckets: list[list[TensorSpec]] = []
    room = 0
    for spec in specs:
        if spec.nbytes > room or not buckets:
            buckets.append([])
            room = max_bytes
        buckets[-1].append(spec)
        room -= spec.nbytes
    return [Bucket(tuple(sorted(bucket, key=lambda spec: -spec.dtype.itemsize))) for bucket in buckets]


def _dtype(files: TensorFiles, name: str) -> torch.dtype:
    stored = files.dtype(name)
    if stored not in DTYPES:
        raise ValueError(f"{files.place(name)}: its type {stored} is not sent to engines; set engine.server.update=disk")
    return DTYPES[stored]
