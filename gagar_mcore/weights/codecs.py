"""The stored tensors of a few plain ones: what each codec writes, and, from shapes alone, what that will be."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gagar_mcore.weights import fp8, mxfp4
from gagar_mcore.weights.qkv import QkvShards

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    shape: Shape
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Codec(Protocol):
    def specs(self, shapes: Mapping[str, Shape]) -> list[TensorSpec]:
        """Of what `encode` gives, in its order."""

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Raises ValueError where a weight cannot be stored so."""

    def decode(self, stored: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """The plain tensors of what `encode` gave for those of these names: as stored, float32 where they were quantised."""


@dataclass(frozen=True, slots=True)
class Plain:
    dtype: torch.dtype

    def specs(self, shapes: Mapping[str, Shape]) -> list[TensorSpec]:
        return [TensorSpec(name, shape, self.dtype) for name, shape in shapes.items()]

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.dtype) for name, tensor in tensors.items()}

    def decode(self, stored: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        return {name: stored[name] for name in names}


@dataclass(frozen=True, slots=True)
class FusedPlain:
    """Queries, keys and values of a layer in one tensor."""

    dtype: torch.dtype
    shards: QkvShards

    def specs(self, shapes: Mapping[str, Shape]) -> list[TensorSpec]:
        return [TensorSpec(fused_name(shapes), _fused_shape(shapes), self.dtype)]

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {fused_name(tensors): self.shards.fuse(list(tensors.values())).to(self.dtype)}

    def decode(self, stored: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        return dict(zip(names, self.shards.split(stored[fused_name(names)], self.shards.rows), strict=True))


class Fp8:
    """Each tensor by itself."""

    def specs(self, shapes: Mapping[str, Shape]) -> list[TensorSpec]:
        return [spec for name, shape in shapes.items() for spec in _fp8_specs(name, shape, fp8.scale_shape(*shape))]

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(pair for name, tensor in tensors.items() for pair in _fp8_pair(name, *fp8.quantize(tensor)))

    def decode(self, stored: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        return {name: fp8.dequantize(stored[name], stored[f"{name}_scale_inv"]) for name in names}


class Mxfp4:
    """Each tensor by itself."""

    def specs(self, shapes: Mapping[str, Shape]) -> list[TensorSpec]:
        return [spec for name, (rows, columns) in shapes.items() for spec in self._specs(name, rows, columns)]

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        stored: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            stored[name], stored[f"{name}_scale"] = mxfp4.quantize(tensor)
        return stored

    def decode(self, stored: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        return {name: mxfp4.dequantize(stored[name], stored[f"{name}_scale"]) for name in names}

    def _specs(self, name: str, rows: int, columns: int) -> Iterator[TensorSpec]:
        yield TensorSpec(name, mxfp4.packed_shape(rows, columns), torch.uint8)
        yield TensorSpec(f"{name}_scale", mxfp4.scale_shape(rows, columns), torch.uint8)


@dataclass(frozen=True, slots=True)
class ShardedFp8:
    """Queries, keys and values of a layer, quantised by the shards of `weights.qkv`, in one tensor or in three."""

    shards: QkvShards
    fused: bool

    def specs(self, shapes: Mapping[str, Shape]) -> list[TensorSpec]:
        columns = fp8.blocks(_fused_shape(shapes)[1])
        if self.fused:
            return _fp8_specs(fused_name(shapes), _fused_shape(shapes), (self.shards.count * self.shards.blocks, columns))
        scales = [(self.shards.count * blocks, columns) for blocks in self.shards.dealt_blocks]
        parts = zip(shapes.items(), scales, strict=True)
        return [spec for (name, shape), scale in parts for spec in _fp8_specs(name, shape, scale)]

    def encode(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values, scales = self.shards.quantize(list(tensors.values()))
        if self.fused:
            return dict(_fp8_pair(fused_name(tensors), values, scales))
        of_parts = self.shards.split(values, self.shards.rows), self.shards.split(scales, self.shards.dealt_blocks)
        return dict(pair for part in zip(tensors, *of_parts, strict=True) for pair in _fp8_pair(*part))

    def decode(self, stored: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        tensors = [fused_name(names)] if self.fused else names
        values, scales = ([stored[f"{name}{suffix}"] for name in tensors] for suffix in ("", "_scale_inv"))
        whole = (values[0], scales[0]) if self.fused else (self.shards.fuse(values), self.shards.fuse(scales))
        return dict(zip(names, self.shards.dequantize(*whole), strict=True))


def fused_name(names: Iterable[str]) -> str:
    """Of the projections of these names."""
    return next(iter(names)).replace(".q_proj.", ".qkv_proj.")


def _fused_shape(shapes: Mapping[str, Shape]) -> Shape:
    parts = list(shapes.values())
    return sum(rows for rows, _ in parts), parts[0][1]


def _fp8_specs(name: str, shape: Shape, scales: Sequence[int]) -> list[TensorSpec]:
    return [TensorSpec(name, shape, fp8.DTYPE), TensorSpec(f"{name}_scale_inv", tuple(scales), torch.float32)]


def _fp8_pair(name: str, values: Tensor, scales: Tensor) -> list[tuple[str, Tensor]]:
    return [(name, values), (f"{name}_scale_inv", scales)]
