"""The policy as the engine runs it: a transformers MiMo-V2-Flash model over a cache of positions."""

from pathlib import Path

import torch
from torch import Tensor

from gagar_mcore.engine.cache import Chunk, PositionCache
from gagar_mcore.engine.checkpoint import read_architecture, read_model
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.routing import ExpertRecorder


class Policy:
    """Weights and cache. `forward` is exact: its logits are those of the uncached model on each row's whole sequence.

    directory: config.json and *.safetensors; max_context: None takes the config's `max_position_embeddings`; device: of both;
    record_experts: whether `recorder` notes those of each pass.
    Raises EngineError where the directory holds no such model, or where there is no such device.
    """

    cache: PositionCache | None
    recorder: ExpertRecorder | None

    def __init__(
        self,
        directory: Path,
        version: int,
        rows: int,
        max_context: int | None = None,
        device: str = "cpu",
        record_experts: bool = False,
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineError("engine.device: cuda, but torch sees no GPU: run gagar doctor, or set engine.device=cpu")
        self.architecture = read_architecture(directory)
        self.rows = rows
        self.max_context = max_context or self.architecture.max_positions
        self.device = torch.device(device)
        self._record_experts = record_experts
        self.load(directory, version)

    def load(self, directory: Path, version: int) -> None:
        """Replace the weights and drop the cache. Raises EngineError, and keeps the old ones, where `directory` is damaged
        or does not fit the config."""
        self.model = read_model(directory, self.architecture)
        self.version = version
        self.recorder = ExpertRecorder(self.model) if self._record_experts else None
        self._occupy()

    def release(self) -> None:
        """Leave the device's memory to others: the weights wait in the host's, the cache is dropped. The next `forward` comes
        back by itself."""
        self.model.to("cpu")
        self.cache = None
        torch.cuda.empty_cache()

    @torch.inference_mode()
    def forward(self, chunk: Chunk) -> Tensor:
        """Append `chunk` to the cache; `[n, vocab]` logits, on the policy's device, after the last new token of each row."""
        cache = self.cache or self._occupy()
        chunk = chunk.to(self.device)
        masks = cache.begin(chunk)
        hidden = self.model.model(
            input_ids=chunk.ids,
            attention_mask=masks,
            position_ids=chunk.positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return self.model.lm_head(hidden[torch.arange(len(chunk.rows), device=self.device), chunk.lengths - 1])

    def _occupy(self) -> PositionCache:
        self.model.to(self.device)
        self.cache = cache = PositionCache(self.architecture, self.rows, self.max_context, self.device)
        return cache
