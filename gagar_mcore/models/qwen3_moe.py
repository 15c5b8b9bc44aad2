"""Qwen3-MoE in Hugging Face's `config.json`: global attention, normalised queries and keys, softmax router."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from gagar_mcore.models.config import LayerType, ModelConfig
from gagar_mcore.models.fields import Experts, Fields, Number, read_fields

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


class _Rope(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    rope_type: Literal["default"] = "default"
    rope_theta: Number


class _Fields(Fields):
    EXPERTS = "num_experts"

    num_experts: Annotated[Experts, Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))]
    rms_norm_eps: Number
    rope_parameters: _Rope | None = None
    rope_theta: Number | None = None
    mlp_only_layers: list[Annotated[int, Field(ge=0)]] | None = None


def read(data: dict[str, Any]) -> ModelConfig:
    """Raises ValueError for a field that is missing or not supported."""
    fields = read_fields(_Fields, data)
    if data.get("rope_scaling"):
        raise ValueError(f"rope_scaling: {data['rope_scaling']!r} is not supported")
    theta = fields.rope_parameters.rope_theta if fields.rope_parameters else fields.rope_theta
    if theta is None:
        raise ValueError("field 'rope_theta' is missing")
    layers, dense = fields.num_hidden_layers, set(fields.mlp_only_layers or ())
    everywhere: LayerType = "full_attention"
    if max(dense, default=0) >= layers:
        raise ValueError(f"mlp_only_layers: names layer {max(dense)}, num_hidden_layers is {layers}; correct one of them")
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=fields.vocab_size,
        hidden_size=fields.hidden_size,
        num_heads=fields.num_attention_heads,
        kv_heads=fields.num_key_value_heads,
        sliding_kv_heads=fields.num_key_value_heads,
        head_dim=fields.head_dim,
        v_head_dim=fields.head_dim,
        layer_types=(everywhere,) * layers,
        moe_layers=tuple(layer not in dense for layer in range(layers)),
        ffn_size=fields.intermediate_size,
        moe_ffn_size=fields.moe_intermediate_size,
        num_experts=fields.num_experts,
        top_k=fields.num_experts_per_tok,
        sliding_window=0,
        max_positions=fields.max_position_embeddings,
        rope_theta=theta,
        partial_rotary_factor=1.0,
        value_scale=1.0,
        qk_norm=True,
        router_scores="softmax",
        selection_bias=False,
        norm_eps=fields.rms_norm_eps,
        init_std=fields.initializer_range,
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
