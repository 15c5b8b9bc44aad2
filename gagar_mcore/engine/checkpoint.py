"""A transformers model from a directory in Hugging Face format, whole or refused."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import MiMoV2FlashForCausalLM
from transformers.utils import logging

from gagar_mcore.engine import kernels
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.store import MANIFEST, RecordError, read_manifest

IGNORED = "model.mtp."  # multi-token prediction: transformers does not run it
SHOWN = 5

logging.disable_progress_bar()


def read_architecture(directory: Path) -> ModelConfig:
    """Raises EngineError where `directory` holds no config.json of a MiMo-V2-Flash model."""
    try:
        architecture = read_config(directory)
    except ValueError as error:
        raise EngineError(str(error)) from error
    if architecture.family != "mimo_v2":
        raise EngineError(f"{directory / 'config.json'}: the embedded engine runs mimo_v2 models, not {architecture.family}")
    return architecture


def read_model(directory: Path, architecture: ModelConfig) -> Any:
    """The model in fp32, for inference. Raises EngineError where a manifest in `directory` does not match its files, its
    config.json describes another architecture, or a tensor is missing, unknown or of another shape."""
    _check_published(directory)
    if read_architecture(directory) != architecture:
        raise EngineError(f"{directory / 'config.json'}: describes another architecture than the engine was started with")
    _check_tensors(directory, tensor_shapes(architecture))
    model: Any = MiMoV2FlashForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation=kernels.NAME,
        experts_implementation=kernels.NAME,
        local_files_only=True,
    )
    for tensor in (*model.parameters(), *model.buffers()):
        # Loaded tensors are views of the file at any offset: a copy is aligned, so that equal weights give equal bits.
        tensor.data = tensor.data.clone()
    return model.eval().requires_grad_(False)


def _check_published(directory: Path) -> None:
    if not (directory / MANIFEST).exists():
        return
    try:
        read_manifest(directory, "weights", verify=True)
    except RecordError as error:
        raise EngineError(str(error)) from error


def _check_tensors(directory: Path, expected: dict[str, tuple[int, ...]]) -> None:
    found = {name: shape for path in sorted(directory.glob("*.safetensors")) for name, shape in _shapes(path).items()}
    if not found:
        raise EngineError(f"{directory}: holds no tensors in *.safetensors")
    faults = [f"{name} is missing" for name in expected.keys() - found.keys()]
    faults += [f"{name} is unknown" for name in found.keys() - expected.keys() if not name.startswith(IGNORED)]
    faults += [
        f"{name} is {list(found[name])}, expected {list(expected[name])}"
        for name in found.keys() & expected.keys()
        if found[name] != expected[name]
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise EngineError(f"{directory}: {'; '.join(sorted(faults)[:SHOWN])}{more}")


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except SafetensorError as error:
        raise EngineError(f"{path}: not a readable safetensors file: {error}") from error
