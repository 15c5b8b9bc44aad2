"""The policy as the engine runs it: a transformers MiMo-V2-Flash model over a cache of positions."""

from pathlib import Path

import torch
from torch import Tensor

from gagar_mcore.engine.cache import Chunk, PositionCache
from gagar_mcore.engine.checkpoint import read_architecture, read_model


class Policy:
    """Weights and cache. `forward` is exact: its logits are those of the uncached model on each row's whole sequence.

    directory: config.json and *.safetensors; max_context: None takes the config's `max_position_embeddings`.
    Raises EngineError where the directory holds no such model.
    """

    def __init__(self, directory: Path, version: int, rows: int, max_context: int | None = None) -> None:
        self.architecture = read_architecture(directory)
        self.rows = rows
        self.max_context = max_context or self.architecture.max_positions
        self.load(directory, version)

    def load(self, directory: Path, version: int) -> None:
        """Replace the weights and drop the cache. Raises EngineError, and keeps the old ones, where `directory` is damaged
        or does not fit the config."""
        self.model = read_model(directory, self.architecture)
        self.version = version
        self.cache = PositionCache(self.architecture, self.rows, self.max_context)

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
