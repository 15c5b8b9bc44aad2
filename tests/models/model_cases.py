"""Small models of every kind with random weights and sequences, the same in the test and in the rank that it starts."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import tensor_shapes

LENGTHS = (70, 5, 33)  # beyond, below and at the sliding window


@dataclass(frozen=True)
class Case:
    model: ModelConfig
    routing: Literal["free", "replay"] = "free"

    @property
    def sequences(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        return [torch.randint(self.model.vocab_size, (length,), generator=generator) for length in LENGTHS]

    def tensors(self) -> dict[str, Tensor]:
        """Norms, sinks and selection bias differ from their neutral values."""
        read = random_tensors(self.model, seed=5)
        tensors = {name: read(name) for name in tensor_shapes(self.model)}
        for place, (_, tensor) in enumerate(sorted(tensors.items())):
            if tensor.ndim == 1:
                tensor += 0.3 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(place))
        return tensors

    def experts(self) -> list[Tensor] | None:
        """Of each sequence `[n, MoE layers, top_k]`, at random; -1, the router's own choice, for every fifth token."""
        if self.routing == "free":
            return None
        shape, generator = (sum(self.model.moe_layers), self.model.num_experts), torch.Generator().manual_seed(4)
        chosen = [torch.rand(length, *shape, generator=generator).argsort(-1)[..., : self.model.top_k] for length in LENGTHS]
        return [torch.where(torch.arange(len(c))[:, None, None] % 5 == 0, -1, c) for c in chosen]

    def following(self, distance: int) -> Tensor:
        """For every token of the packed sequences the one `distance` places on; 0 beyond its sequence."""
        return torch.cat([torch.cat([s[distance:], s.new_zeros(min(distance, len(s)))]) for s in self.sequences])

    def probe(self, name: str, output: Tensor) -> Tensor:
        """Fixed random weights of an output, so that a sum with them has a gradient everywhere. Multi-token prediction counts
        only where the tokens it reads lie inside the sequence."""
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(len(name)))
        if name.startswith("mtp"):
            distance = int(name.split()[1]) + 1
            inside = [torch.arange(length) < length - distance for length in LENGTHS]
            weights = weights * torch.cat(inside)[:, None]
        return weights


TINY = preset("tiny")
QWEN = replace(
    TINY,
    family="qwen3_moe",
    sliding_kv_heads=2,
    v_head_dim=TINY.head_dim,
    layer_types=("full_attention",) * 4,
    moe_layers=(True,) * 4,
    sliding_window=0,
    partial_rotary_factor=1.0,
    value_scale=1.0,
    qk_norm=True,
    router_scores="softmax",
    selection_bias=False,
)
CASES = {
    "replayed experts": Case(TINY, "replay"),
    "replayed experts of qwen3": Case(QWEN, "replay"),
    "flash": Case(TINY),
    "pro": Case(replace(TINY, num_heads=8, kv_heads=4, sliding_kv_heads=4, value_scale=0.612)),
    "window before self": Case(replace(TINY, window_includes_self=False, sliding_kv_heads=2)),
    "multi-token prediction": Case(replace(TINY, mtp_layers=3)),
    "qwen3": Case(QWEN),
}
