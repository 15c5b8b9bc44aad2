"""Published checkpoints, however they store their weights, read as plain tensors under the names of `models.weight_map`."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.weight_map import layer_names, tensor_shapes
from gagar_mcore.weights import fp8, mxfp4
from gagar_mcore.weights.files import TensorFiles, TensorReader
from gagar_mcore.weights.qkv import PARTS, QkvShards

PROJECTION = re.compile(r"(?P<attention>.+\.self_attn)\.(?P<part>[qkv])_proj\.weight")
MTP_LAYER = re.compile(r"model\.mtp\.layers\.(\d+)\.")
PLAIN = {"F32", "BF16", "F16"}
FP8, PACKED, EXPONENT = "F8_E4M3", "U8", "U8"
Read = Callable[[], Tensor]


def open_checkpoint(directory: Path) -> TensorReader:
    """A function that reads one tensor: as stored where it is stored plainly, float32 where it was quantised. What a tensor's
    type and the tensors beside it say decides, not the configuration: e4m3 with `weight_scale_inv` is FP8, bytes with
    `weight_scale` are MXFP4, a `qkv_proj` holds queries, keys and values. Raises ValueError with file and tensor for a shape, a
    type or a scale that is not the model's or is missing, and for weights that are not finite."""
    return PublishedCheckpoint(directory).read


class PublishedCheckpoint:
    """model: that of `config.json`, but with as many multi-token-prediction layers as there are weights of; published
    configurations do not always tell, and some conversions drop these layers."""

    def __init__(self, directory: Path) -> None:
        """Raises ValueError, see `TensorFiles` and `read_config`."""
        self.files = TensorFiles(directory)
        self.model = replace(read_config(directory), mtp_layers=self._count_mtp_layers())
        self.shapes = tensor_shapes(self.model)
        self._shards = {
            f"{layer.ours}.self_attn": QkvShards.of_layer(self.model, layer.index) for layer in layer_names(self.model)
        }
        self._used: set[str] = set()

    def read(self, name: str) -> Tensor:
        tensor = self._reader(name)()
        if not bool(torch.stack(torch.aminmax(tensor)).isfinite().all()):
            fused = PROJECTION.sub(r"\g<attention>.qkv_proj.weight", name)
            place = self.files.place(fused if fused in self.files else name)
            raise ValueError(f"{place}: holds weights that are not finite; fetch the file again")
        return tensor

    def check(self) -> set[str]:
        """Look at every name, shape and type of the model, reading no weights; returns the stored tensors that are no part of
        it, like those of a vision tower. Raises ValueError, see `open_checkpoint`, also for layers the model does not have."""
        try:
            return self._others()
        except ValueError as error:
            raise ValueError(f"{error}; correct config.json, or fetch the checkpoint again") from error

    def _others(self) -> set[str]:
        self._used.clear()
        for name in self.shapes:
            self._reader(name)
        others = self.files.names - self._used
        for name in sorted(others):
            if name.startswith(("model.layers.", "model.mtp.")):
                raise ValueError(f"{self.files.place(name)}: the model of config.json has no such tensor")
        return others

    def _count_mtp_layers(self) -> int:
        return len({match[1] for name in self.files.names if (match := MTP_LAYER.match(name))})

    def _reader(self, name: str) -> Read:
        """Everything but reading."""
        projection = PROJECTION.fullmatch(name)
        if projection is None or projection["attention"] not in self._shards:
            return self._whole(name)
        attention, part = projection["attention"], PARTS.index(projection["part"])
        if f"{attention}.qkv_proj.weight" in self.files:
            return self._of_fused(attention, part)
        if self._deals_scales(attention):
            return self._of_dealt(attention, part)
        return self._whole(name)

    def _whole(self, name: str) -> Read:
        """A tensor of its own, with its scales where it has any."""
        rows_columns = self.shapes[name]
        dtype = self._dtype(name)
        if dtype == FP8:
            rows, columns = self._expect(name, rows_columns)
            scales = self._scales(f"{name}_scale_inv", fp8.scale_shape(rows, columns), "F32")
            return lambda: self._decode(name, fp8.dequantize, self.files.read(name), self.files.read(scales))
        if dtype == PACKED:
            rows, columns = rows_columns
            self._expect(name, mxfp4.packed_shape(rows, columns))
            scales = self._scales(f"{name}_scale", mxfp4.scale_shape(rows, columns), EXPONENT)
            return lambda: self._decode(name, mxfp4.dequantize, self.files.read(name), self.files.read(scales))
        self._expect(name, rows_columns)
        return lambda: self.files.read(name)

    def _of_fused(self, attention: str, part: int) -> Read:
        """Queries, keys or values of every shard of a fused tensor; of the others nothing is read."""
        shards, fused = self._shards[attention], f"{attention}.qkv_proj.weight"
        height = sum(shards.rows)
        self._expect(fused, (shards.count * height, self.model.hidden_size))
        start, stop = shards.span(part)

        def rows() -> list[Tensor]:
            bases = range(0, shards.count * height, height)
            return [self.files.read_rows(fused, base + start, base + stop) for base in bases]

        if self._dtype(fused) != FP8:
            return lambda: torch.cat(rows())
        shape = (shards.count * shards.blocks, fp8.blocks(self.model.hidden_size))
        scales = self._scales(f"{fused}_scale_inv", shape, "F32")
        return lambda: _dequantize(shards, part, rows(), self.files.read(scales).chunk(shards.count))

    def _of_dealt(self, attention: str, part: int) -> Read:
        """A tensor of its own, whose scales, or those of its neighbours, are those of shards."""
        shards, name = self._shards[attention], f"{attention}.{PARTS[part]}_proj.weight"
        self._expect(name, self.shapes[name])
        columns = fp8.blocks(self.model.hidden_size)
        scales = [
            self._scales(f"{attention}.{other}_proj.weight_scale_inv", (shards.count * blocks, columns), "F32")
            for other, blocks in zip(PARTS, shards.dealt_blocks, strict=True)
        ]

        def read() -> Tensor:
            whole = shards.fuse([self.files.read(scale) for scale in scales])
            return _dequantize(shards, part, self.files.read(name).chunk(shards.count), whole.chunk(shards.count))

        return read

    def _deals_scales(self, attention: str) -> bool:
        """Whether three tensors are quantised by shards, which their rows of scales show; see `weights.qkv`."""
        shards = self._shards[attention]
        names = [f"{attention}.{part}_proj.weight_scale_inv" for part in PARTS]
        if not shards.deals_scales or not all(name in self.files for name in names):
            return False
        return tuple(self.files.shape(name)[0] for name in names) != shards.plain_blocks

    def _dtype(self, name: str) -> str:
        dtype = self.files.dtype(name)
        if dtype not in {*PLAIN, FP8, PACKED}:
            raise ValueError(f"{self.files.place(name)}: its type {dtype} is not supported")
        return dtype

    def _expect(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        self._used.add(name)
        if (found := self.files.shape(name)) != shape:
            raise ValueError(f"{self.files.place(name)}: shape {list(found)}, the model of config.json has {list(shape)}")
        return shape

    def _scales(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        if name not in self.files:
            raise ValueError(f"{self.files.directory}: holds no tensor {name}, without which its weight cannot be read")
        self._used.add(name)
        found = self.files.shape(name), self.files.dtype(name)
        if found != (shape, dtype):
            raise ValueError(f"{self.files.place(name)}: {found[1]} {list(found[0])}, expected {dtype} {list(shape)}")
        return name

    def _decode(self, name: str, decode: Callable[[Tensor, Tensor], Tensor], values: Tensor, scales: Tensor) -> Tensor:
        try:
            return decode(values, scales)
        except ValueError as error:
            raise ValueError(f"{self.files.place(name)}: {error}") from error


def _dequantize(shards: QkvShards, part: int, values: list[Tensor] | tuple[Tensor, ...], scales: tuple[Tensor, ...]) -> Tensor:
    pairs = zip(values, scales, strict=True)
    return torch.cat([shards.dequantize_part(part, rows, of_shard) for rows, of_shard in pairs])
