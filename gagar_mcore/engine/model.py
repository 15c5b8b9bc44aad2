"""The policy as the engine runs it: a transformers MiMo-V2-Flash model over a cache of positions."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, MiMoV2FlashForCausalLM
from transformers.utils import logging

from gagar_mcore.engine import kernels
from gagar_mcore.engine.cache import Chunk, PositionCache
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.records.store import MANIFEST, RecordError, read_manifest

logging.disable_progress_bar()


class Policy:
    """Weights and cache. `forward` is exact: its logits are those of the uncached model on each row's whole sequence.

    directory: config.json and *.safetensors; max_context: None takes the config's `max_position_embeddings`.
    Raises EngineError where the directory holds no such model.
    """

    def __init__(self, directory: Path, version: int, rows: int, max_context: int | None = None) -> None:
        self.config = _read_config(directory)
        self.rows = rows
        self.max_context = max_context or self.config.max_position_embeddings
        self.load(directory, version)

    def load(self, directory: Path, version: int) -> None:
        """Replace the weights and drop the cache. Raises EngineError, and keeps the old ones, where `directory` is damaged
        or does not fit the config."""
        self.model = _read_model(directory, self.config)
        self.version = version
        self.cache = PositionCache(self.config, self.rows, self.max_context)

    @torch.inference_mode()
    def forward(self, chunk: Chunk) -> Tensor:
        """Append `chunk` to the cache; `[n, vocab]` logits after the last new token of each row."""
        masks = self.cache.begin(chunk)
        hidden = self.model.model(
            input_ids=chunk.ids,
            attention_mask=masks,
            position_ids=chunk.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        return self.model.lm_head(hidden[torch.arange(len(chunk.rows)), chunk.lengths - 1])


def _read_config(directory: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise EngineError(f"{directory}: no readable config.json of a model") from error
    if config.model_type != "mimo_v2_flash":
        raise EngineError(
            f"{directory / 'config.json'}: model_type is {config.model_type}, the embedded engine runs mimo_v2_flash"
        )
    return config


def _read_model(directory: Path, config: Any) -> Any:
    _check_published(directory)
    try:
        model, info = MiMoV2FlashForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=torch.float32,
            attn_implementation=kernels.NAME,
            experts_implementation=kernels.NAME,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except OSError as error:
        raise EngineError(f"{directory}: no readable *.safetensors") from error
    for fault, names in info.items():
        if names:
            raise EngineError(f"{directory}: {fault.replace('_', ' ')}: {', '.join(sorted(map(str, names)))}")
    return model.eval()


def _check_published(directory: Path) -> None:
    if not (directory / MANIFEST).exists():
        return
    try:
        read_manifest(directory, "weights", verify=True)
    except RecordError as error:
        raise EngineError(str(error)) from error
