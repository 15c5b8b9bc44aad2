"""A run of random weights that are changed and published step by step, without a trainer."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.epochs import Fence, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import FileSum, publish_directory
from gagar_mcore.weights.deltas import KIND, delta_meta, delta_of, write_delta
from gagar_mcore.weights.files import write_companions
from gagar_mcore.weights.publish import publish_weights
from gagar_mcore.weights.storage import Format, Storage
from gagar_mcore.weights.stream import plan_files, shard_name, write_files, write_index

FILE_BYTES = 10**9
HIDDEN, EXPERT_FFN = 1024, 512


def model_of(size: int, format: Format) -> ModelConfig:
    """A mixture of experts whose weights take about `size` bytes, four layers of the tiny preset made wider."""
    wide = replace(preset("tiny"), hidden_size=HIDDEN, ffn_size=2 * HIDDEN, moe_ffn_size=EXPERT_FFN, num_experts=2)
    with_two, with_four = (stored_bytes(replace(wide, num_experts=experts), format) for experts in (2, 4))
    experts = 2 + round(2 * (size - with_two) / (with_four - with_two))
    return replace(wide, num_experts=max(experts, wide.top_k))


def stored_bytes(model: ModelConfig, format: Format) -> int:
    storage = Storage(model, format)
    return sum(spec.nbytes for unit in storage.units() for spec in storage.specs(unit))


class SyncedRun:
    """`version` is that of `weights`, which a step changes."""

    def __init__(self, model: ModelConfig, format: Format, directory: Path) -> None:
        self.model, self.version = model, 0
        self.layout = RunLayout(directory)
        self._storage = Storage(model, format)
        self._generator = torch.Generator().manual_seed(1)
        self._fence = Fence(self.layout, open_epoch(self.layout, 1, 0).number)
        specs = chain.from_iterable(self._storage.specs(unit) for unit in self._storage.units())
        dtypes = {spec.name: spec.dtype for spec in specs}
        self.weights = {name: self._random(shape).to(dtypes[name]) for name, shape in tensor_shapes(model).items()}

    def step(self, share: float) -> None:
        """Change about this share of the values of every tensor."""
        self.version += 1
        for tensor in self.weights.values():
            count = max(1, round(share * tensor.numel()))
            places = torch.randint(tensor.numel(), (count,), generator=self._generator)
            tensor.view(-1)[places] = self._random((count,)).to(tensor.dtype)

    def publish(self) -> Path:
        """As a rank of the trainer does."""
        return publish_weights(self.layout, self.version, self._fill, self._fence)

    def publish_delta(self) -> Path:
        """What `version` changes in the one before."""
        base, target = self.layout.weights(self.version - 1), self.layout.weights(self.version)
        delta_of(target).parent.mkdir(exist_ok=True)

        def fill(directory: Path) -> dict[str, str]:
            write_delta(base, target, directory)
            return delta_meta(base, target)

        publish_directory(delta_of(target), KIND, self._fence.epoch, fill)
        return delta_of(target)

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator) * self.model.init_std

    def _fill(self, directory: Path) -> Mapping[str, FileSum]:
        units = list(self._storage.units())
        plan = plan_files((self._storage.specs(unit) for unit in units), FILE_BYTES)
        files = {shard_name(number, len(plan)): specs for number, specs in enumerate(plan, start=1)}
        stored = (self._storage.encode({name: self.weights[name] for name in unit}).items() for unit in units)
        sums = write_files({directory / name: specs for name, specs in files.items()}, chain.from_iterable(stored))
        write_index(files, directory)
        write_companions(self._storage.companions({"config.json": json.dumps(to_hf(self.model)).encode()}), directory)
        return {path.name: known for path, known in sums.items()}
