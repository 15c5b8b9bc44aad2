"""Checkpoints in Hugging Face format, written and read by one process."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.weights.files import TensorReader, write_companions
from gagar_mcore.weights.storage import Format, Storage
from gagar_mcore.weights.stream import plan_files, shard_name, write_files, write_index

MEGABYTE = 1 << 20


def write_tensors(storage: Storage, read: TensorReader, directory: Path, max_bytes: int = MEGABYTE) -> Path:
    """All weights, in files of `max_bytes`, and their index."""
    directory.mkdir(exist_ok=True)
    plan = plan_files((storage.specs(unit) for unit in storage.units()), max_bytes)
    files = {shard_name(number, len(plan)): specs for number, specs in enumerate(plan, start=1)}
    encoded = (storage.encode({name: read(name) for name in unit}).items() for unit in storage.units())
    write_files({directory / name: specs for name, specs in files.items()}, chain.from_iterable(encoded))
    write_index(files, directory)
    return directory


def write_stored(
    storage: Storage, read: TensorReader, companions: Mapping[str, bytes], directory: Path, max_bytes: int = MEGABYTE
) -> Path:
    """A whole checkpoint, with the other files of another one."""
    write_tensors(storage, read, directory, max_bytes)
    write_companions(storage.companions(companions), directory)
    return directory


def write_plain(tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes], directory: Path) -> None:
    """One file of the tensors as they are, and the files beside it."""
    save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})
    write_companions(companions, directory)


def read_stored(directory: Path) -> dict[str, Tensor]:
    """Every tensor as it is stored."""
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


def stored_bytes(model: ModelConfig, format: Format) -> int:
    """Of all tensors of a published checkpoint, as they are announced; every expert takes as much as the next, and there are tens
    of thousands."""
    naming = "fused" if model.family == "mimo_v2" else "split"
    storages = [Storage(replace(model, num_experts=experts), format, naming) for experts in (1, 2)]
    one, two = (sum(spec.nbytes for unit in storage.units() for spec in storage.specs(unit)) for storage in storages)
    return one + (model.num_experts - 1) * (two - one)
