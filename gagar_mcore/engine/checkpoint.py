"""A transformers model from a checkpoint directory in Hugging Face format, however it is stored, whole or refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM
from transformers.utils import logging

from gagar_mcore.engine import kernels
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config, to_hf
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.store import MANIFEST, RecordError, read_manifest
from gagar_mcore.weights.published import PublishedCheckpoint

logging.disable_progress_bar()


def read_architecture(directory: Path) -> ModelConfig:
    """Without layers of multi-token prediction, which the engine does not run. Raises EngineError where `directory` holds no
    config.json of a model that it does."""
    try:
        architecture = replace(read_config(directory), mtp_layers=0)
    except ValueError as error:
        raise EngineError(str(error)) from error
    if architecture.family != "mimo_v2":
        raise EngineError(f"{directory / 'config.json'}: the embedded engine runs mimo_v2 models, not {architecture.family}")
    if architecture.sliding_kv_heads != 2 * architecture.kv_heads:
        raise EngineError(
            f"{directory / 'config.json'}: {architecture.sliding_kv_heads} key-value heads on sliding layers and "
            f"{architecture.kv_heads} on global ones; the embedded engine runs models with twice as many"
        )
    return architecture


def read_model(directory: Path, architecture: ModelConfig) -> Any:
    """The model in fp32, for inference. Raises EngineError where a manifest in `directory` does not match its files, its
    config.json describes another architecture, or a tensor is missing, of another shape, or holds what is no number."""
    _check_published(directory)
    if read_architecture(directory) != architecture:
        raise EngineError(f"{directory / 'config.json'}: describes another architecture than the engine was started with")
    model: Any = MiMoV2FlashForCausalLM.from_pretrained(
        None,
        config=MiMoV2FlashConfig(**to_hf(architecture)),
        state_dict=_read_tensors(directory, architecture),
        dtype=torch.float32,
        attn_implementation=kernels.NAME,
        experts_implementation=kernels.NAME,
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


def _read_tensors(directory: Path, architecture: ModelConfig) -> dict[str, Tensor]:
    try:
        checkpoint = PublishedCheckpoint(directory)
        checkpoint.check()
        return {name: checkpoint.read(name) for name in tensor_shapes(architecture)}
    except ValueError as error:
        raise EngineError(str(error)) from error
