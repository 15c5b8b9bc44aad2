"""Sizes of models by name.

`tiny` and `mini` are ours, the others as published in their configurations."""

from collections.abc import Collection
from dataclasses import replace

from gagar_mcore.models.config import LayerType, ModelConfig


def preset(name: str) -> ModelConfig:
    """Sizes by name. Raises ValueError for a name that is not in PRESETS."""
    if name not in PRESETS:
        raise ValueError(f"model.preset: {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def attention_pattern(num_layers: int, full: Collection[int]) -> tuple[LayerType, ...]:
    """Sliding attention everywhere but on the layers `full`."""
    return tuple("full_attention" if layer in full else "sliding_attention" for layer in range(num_layers))


def dense_first(num_layers: int) -> tuple[bool, ...]:
    return (False, *(True,) * (num_layers - 1))


FLASH_FULL = (0, 5, 11, 17, 23, 29, 35, 41, 47)
PRO_FULL = (0, 7, 15, 23, 31, 39, 47, 55, 62, 69)
FLASH = ModelConfig(
    vocab_size=152576,
    hidden_size=4096,
    num_heads=64,
    kv_heads=4,
    sliding_kv_heads=8,
    head_dim=192,
    v_head_dim=128,
    layer_types=attention_pattern(48, FLASH_FULL),
    moe_layers=dense_first(48),
    ffn_size=16384,
    moe_ffn_size=2048,
    num_experts=256,
    top_k=8,
    sliding_window=128,
    max_positions=262144,
    mtp_layers=3,
)
PRESETS = {
    # About one million parameters; trains on a laptop.
    "tiny": ModelConfig(
        vocab_size=512,
        hidden_size=128,
        num_heads=4,
        kv_heads=2,
        sliding_kv_heads=4,
        head_dim=32,
        v_head_dim=24,
        layer_types=attention_pattern(4, (0, 3)),
        moe_layers=dense_first(4),
        ffn_size=256,
        moe_ffn_size=64,
        num_experts=8,
        top_k=2,
        sliding_window=32,
        max_positions=1024,
        init_std=0.03,
    ),
    # About 1.5 billion parameters: weights, gradients and Adam take 27 GB, which leaves room for activations on an 80 GB GPU.
    "mini": ModelConfig(
        vocab_size=152576,
        hidden_size=1024,
        num_heads=16,
        kv_heads=4,
        sliding_kv_heads=8,
        head_dim=96,
        v_head_dim=64,
        layer_types=attention_pattern(12, (0, 5, 11)),
        moe_layers=dense_first(12),
        ffn_size=4096,
        moe_ffn_size=512,
        num_experts=64,
        top_k=8,
        sliding_window=128,
        max_positions=32768,
    ),
    "mimo-v2-flash": FLASH,
    "mimo-v2.6-flash": replace(FLASH, max_positions=1048576, rope_theta=1e7, norm_eps=1e-6),
    "mimo-v2.6-pro": replace(
        FLASH,
        hidden_size=6144,
        num_heads=128,
        kv_heads=8,
        layer_types=attention_pattern(70, PRO_FULL),
        moe_layers=dense_first(70),
        num_experts=384,
        max_positions=1048576,
        rope_theta=1e7,
        value_scale=0.612,
    ),
    "qwen3-30b-a3b": ModelConfig(
        family="qwen3_moe",
        vocab_size=151936,
        hidden_size=2048,
        num_heads=32,
        kv_heads=4,
        sliding_kv_heads=4,
        head_dim=128,
        v_head_dim=128,
        layer_types=("full_attention",) * 48,
        moe_layers=(True,) * 48,
        ffn_size=6144,
        moe_ffn_size=768,
        num_experts=128,
        top_k=8,
        sliding_window=0,
        max_positions=40960,
        rope_theta=1e6,
        partial_rotary_factor=1.0,
        value_scale=1.0,
        qk_norm=True,
        router_scores="softmax",
        selection_bias=False,
        norm_eps=1e-6,
    ),
}
