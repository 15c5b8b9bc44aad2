"""Which experts tokens pass on their way through the engine's model."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gagar_mcore.engine.cache import Chunk
from gagar_mcore.records.experts import Experts


class ExpertRecorder:
    """Notes, layer by layer, where the model's routers send the tokens of a forward pass."""

    def __init__(self, model: Any) -> None:
        self._chosen: list[Tensor] = []
        for layer in model.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts.register_forward_pre_hook(self._note)

    def _note(self, _: Any, arguments: tuple[Tensor, Tensor, Tensor]) -> None:
        self._chosen.append(arguments[1])

    def take(self, chunk: Chunk) -> list[Experts]:
        """Of the pass over `chunk` just made: for each row, the experts of its new tokens."""
        chosen = torch.stack(self._chosen, dim=1).to("cpu", torch.int16).numpy()
        self._chosen.clear()
        rows = chosen.reshape(*chunk.ids.shape, *chosen.shape[1:])
        return [np.array(row[:length]) for row, length in zip(rows, chunk.lengths.tolist(), strict=True)]
