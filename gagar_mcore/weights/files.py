"""Checkpoint directories in Hugging Face format."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gagar_mcore.records.store import MANIFEST

INDEX = "model.safetensors.index.json"
MEGATRON = ".metadata"
WEIGHTS = ("*.safetensors", "*.index.json", "*.distcp", MEGATRON, "metadata.json", "*.bin", "*.pt", "*.pth", "*.gguf")
TensorReader = Callable[[str], Tensor]


class Index(BaseModel):
    """What is read of an index: the file of each tensor."""

    weight_map: dict[str, str]


class TensorFiles:
    """The tensors of a directory's safetensors files by name; nothing is in memory but what a call has returned."""

    def __init__(self, directory: Path) -> None:
        """Raises ValueError where there are none, where the index names one that is not there, or where one is damaged."""
        self.directory = directory
        self._files = {path.name: _open(path) for path in sorted(directory.glob("*.safetensors"))}
        if not self._files:
            raise ValueError(f"{directory}: holds no safetensors file; {_mend(directory)}")
        self._home = {tensor: name for name, file in self._files.items() for tensor in file.keys()}  # noqa: SIM118  (no mapping)
        self._check_index(directory / INDEX)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    @property
    def names(self) -> set[str]:
        return set(self._home)

    def place(self, name: str) -> str:
        """File and name of a tensor, for messages."""
        return f"{self.directory / self._home[name]}: {name}"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors writes it: F32, BF16, F8_E4M3, U8."""
        dtype: str = self._slice(name).get_dtype()
        return dtype

    def read(self, name: str) -> Tensor:
        """Raises ValueError where no file holds the tensor."""
        tensor: Tensor = self._file(name).get_tensor(name)
        return tensor

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of a tensor, without reading the others."""
        rows: Tensor = self._slice(name)[start:stop]
        return rows

    def _file(self, name: str) -> Any:
        if name not in self._home:
            raise ValueError(f"{self.directory}: holds no tensor {name}, which the model of config.json has")
        return self._files[self._home[name]]

    def _slice(self, name: str) -> Any:
        return self._file(name).get_slice(name)

    def _check_index(self, path: Path) -> None:
        for tensor, file in _read_index(path).weight_map.items() if path.is_file() else ():
            if self._home.get(tensor) != file:
                raise ValueError(f"{path}: names {tensor} in {file}, which is not there; fetch the checkpoint again")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged ({error}); fetch the file again") from error


def _read_index(path: Path) -> Index:
    try:
        return Index.model_validate_json(path.read_bytes())
    except ValidationError as error:
        reason, *_ = error.errors()
        place = ".".join(map(str, reason["loc"])) or "content"
        raise ValueError(f"{path}: {place}: {reason['msg']}; an index names the file of each tensor: fetch it again") from error


def _mend(directory: Path) -> str:
    if (directory / MEGATRON).is_file():
        return "it is a checkpoint of Megatron's, of which gagar convert megatron-to-hf makes one that can be read"
    return "name a directory with the weights of a checkpoint in Hugging Face format"


def write_companions(companions: Mapping[str, bytes], directory: Path) -> None:
    for name, content in companions.items():
        (directory / name).write_bytes(content)


def read_companions(directory: Path) -> dict[str, bytes]:
    """Everything of a checkpoint, one of Megatron too, but its weights, by file name: configuration, tokenizer, generation
    defaults."""
    return {path.name: path.read_bytes() for path in _companions(directory)}


def link_checkpoint(source: Path, directory: Path) -> None:
    """The files of a checkpoint in Hugging Face format, in `directory` too. Where one file system holds both, none is copied."""
    index = [source / INDEX] if (source / INDEX).is_file() else []
    for path in (*source.glob("*.safetensors"), *index, *_companions(source)):
        try:
            os.link(path.resolve(), directory / path.name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, directory / path.name)


def _companions(directory: Path) -> list[Path]:
    weights = {path.name for pattern in WEIGHTS for path in directory.glob(pattern)}
    return sorted(path for path in directory.iterdir() if path.is_file() and path.name not in {MANIFEST, *weights})
