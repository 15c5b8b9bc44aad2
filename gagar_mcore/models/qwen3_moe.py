"""Qwen3-MoE in Hugging Face's `config.json`: global attention, normalised queries and keys, softmax router."""

from typing import Any

from gagar_mcore.models.config import ModelConfig

MODEL_TYPES = ("qwen3_moe",)
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "use_sliding_window": False,
}


def read(data: dict[str, Any]) -> ModelConfig:
    """Raises KeyError for a missing field and ValueError for one that is not supported."""
    rope = data.get("rope_parameters") or {"rope_type": "default", "rope_theta": data["rope_theta"]}
    if rope.get("rope_type", "default") != "default" or data.get("rope_scaling"):
        raise ValueError("rope_parameters: only rope_type 'default' is supported")
    layers, dense = data["num_hidden_layers"], set(data.get("mlp_only_layers") or ())
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=data["vocab_size"],
        hidden_size=data["hidden_size"],
        num_heads=data["num_attention_heads"],
        kv_heads=data["num_key_value_heads"],
        sliding_kv_heads=data["num_key_value_heads"],
        head_dim=data["head_dim"],
        v_head_dim=data["head_dim"],
        layer_types=("full_attention",) * layers,
        moe_layers=tuple(layer not in dense for layer in range(layers)),
        ffn_size=data["intermediate_size"],
        moe_ffn_size=data["moe_intermediate_size"],
        num_experts=data["num_experts"] if "num_experts" in data else data["num_local_experts"],
        top_k=data["num_experts_per_tok"],
        sliding_window=0,
        max_positions=data["max_position_embeddings"],
        rope_theta=rope["rope_theta"],
        partial_rotary_factor=1.0,
        value_scale=1.0,
        qk_norm=True,
        router_scores="softmax",
        selection_bias=False,
        norm_eps=data["rms_norm_eps"],
        init_std=data.get("initializer_range", 0.02),
    )


def write(config: ModelConfig, published: bool) -> dict[str, Any]:
    """It is published as transformers spells it."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "float32",
        **FIXED,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_size,
        "moe_intermediate_size": config.moe_ffn_size,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "mlp_only_layers": [layer for layer, moe in enumerate(config.moe_layers) if not moe],
        "max_position_embeddings": config.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": config.norm_eps,
        "initializer_range": config.init_std,
    }
