"""Checkpoint directories in Hugging Face format."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from gagar_mcore.records.store import MANIFEST

TensorReader = Callable[[str], Tensor]


def open_tensors(directory: Path) -> TensorReader:
    """A function that reads one tensor by name from the safetensors files of `directory`.
    Raises ValueError where there are none, or where a name is asked for that none of them holds."""
    files = [safe_open(path, framework="pt") for path in sorted(directory.glob("*.safetensors"))]
    if not files:
        raise ValueError(f"{directory}: holds no safetensors file")
    home = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (not a mapping)

    def read(name: str) -> Tensor:
        if name not in home:
            raise ValueError(f"{directory}: holds no tensor {name}; its config.json describes another model")
        tensor: Tensor = home[name].get_tensor(name)
        return tensor

    return read


def write_checkpoint(tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes], directory: Path) -> None:
    """One `model.safetensors` and the companions beside it; equal content gives equal bytes."""
    save_file({name: tensor.contiguous() for name, tensor in tensors}, directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in companions.items():
        (directory / name).write_bytes(content)


def read_companions(directory: Path) -> dict[str, bytes]:
    """Everything of a checkpoint but its weights, by file name: configuration, tokenizer, generation defaults."""
    weights = {path.name for pattern in ("*.safetensors", "*.index.json") for path in directory.glob(pattern)}
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name not in {MANIFEST, *weights})
    return {path.name: path.read_bytes() for path in files}
