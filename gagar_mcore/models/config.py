"""The architecture of a mixture-of-experts policy as data, whatever its family."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["mimo_v2", "qwen3_moe"]
LayerType = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model. Sliding layers see `window_keys` keys, the query's own included, and carry one learnable sink a
    head; the first `int(head_dim * partial_rotary_factor)` dimensions of a head rotate; values are scaled by `value_scale`.

    `sliding_window` is what the checkpoint's configuration states. Implementations read it in two ways: as all keys that a query
    sees (`window_includes_self`), or as those before its own. The trainer must read it as the rollout engine does."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    kv_heads: int
    sliding_kv_heads: int
    head_dim: int
    v_head_dim: int
    layer_types: tuple[LayerType, ...]
    moe_layers: tuple[bool, ...]
    ffn_size: int
    moe_ffn_size: int
    num_experts: int
    top_k: int
    sliding_window: int
    max_positions: int
    family: Family = "mimo_v2"
    window_includes_self: bool = True
    rope_theta: float = 5e6
    sliding_rope_theta: float = 1e4
    partial_rotary_factor: float = 0.334
    value_scale: float = 0.707
    qk_norm: bool = False  # RMSNorm over each head of queries and keys, before the rotation
    router_scores: Literal["sigmoid", "softmax"] = "sigmoid"
    selection_bias: bool = True  # a bias that chooses experts and does not weight them
    routed_scaling: float = 1.0
    norm_eps: float = 1e-5
    init_std: float = 0.02
    mtp_layers: int = 0  # multi-token-prediction layers: sliding attention and a dense feed-forward network

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def window_keys(self) -> int:
        return self.sliding_window + (not self.window_includes_self)

    def is_sliding(self, layer: int) -> bool:
        """Layers from `num_layers` on are those of multi-token prediction."""
        return layer >= self.num_layers or self.layer_types[layer] == "sliding_attention"

    def is_moe(self, layer: int) -> bool:
        return layer < self.num_layers and self.moe_layers[layer]

    def layer_kv_heads(self, layer: int) -> int:
        return self.sliding_kv_heads if self.is_sliding(layer) else self.kv_heads
