"""Random initial weights, the same whatever the parallel layout."""

import torch
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.randomness import derive_seed
from gagar_mcore.weights.files import TensorReader


def random_tensors(model: ModelConfig, seed: int) -> TensorReader:
    """Checkpoint tensors by name: norms are 1, the router's selection bias 0, all else normal with `init_std`."""
    shapes = tensor_shapes(model)

    def read(name: str) -> Tensor:
        shape = shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        if name.endswith("e_score_correction_bias"):
            return torch.zeros(shape)
        generator = torch.Generator().manual_seed(derive_seed(seed, "init", name) % 2**63)
        return torch.randn(shape, generator=generator) * model.init_std

    return read
