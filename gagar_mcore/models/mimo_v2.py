"""MiMo-V2 in Hugging Face's `config.json`, in both spellings: that of transformers (`layer_types`, `rope_parameters`; twice as
many key-value heads on sliding layers) and that of the published checkpoints (`hybrid_layer_pattern`, `swa_*`)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gagar_mcore.models.config import LayerType, ModelConfig
from gagar_mcore.models.fields import Experts, Fields, Number, Share, Size, read_fields

MODEL_TYPES = ("mimo_v2_flash", "mimo_v2")

# What the Megatron modules here compute; any other value of these keys is another architecture.
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
FIXED_AS_PUBLISHED: dict[str, Any] = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "n_shared_experts": None,
}


class _Fields(Fields):
    EXPERTS = "n_routed_experts"

    v_head_dim: Size
    n_routed_experts: Experts
    sliding_window: Size
    attention_value_scale: Number | None
    routed_scaling_factor: Number | None
    num_nextn_predict_layers: Annotated[int, Field(ge=0, le=100)] = 0


class _Rope(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    rope_type: Literal["default"]
    rope_theta: Number
    partial_rotary_factor: Share


class _Ropes(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    full_attention: _Rope
    sliding_attention: _Rope


class _AsTransformers(_Fields):
    A_LAYER = ("layer_types", "mlp_layer_types")

    layer_types: list[LayerType]
    mlp_layer_types: list[Literal["dense", "sparse"]]
    rope_parameters: _Ropes
    rms_norm_eps: Number


class _AsPublished(_Fields):
    A_LAYER = ("hybrid_layer_pattern", "moe_layer_freq")

    swa_num_key_value_heads: Size
    hybrid_layer_pattern: list[Literal[0, 1]]
    moe_layer_freq: list[Literal[0, 1]]
    rope_theta: Number
    swa_rope_theta: Number
    rope_scaling: dict[str, Any] | None = None
    partial_rotary_factor: Share
    layernorm_epsilon: Number


def read(data: dict[str, Any]) -> ModelConfig:
    """Raises ValueError for a field that is missing or not supported."""
    fields: _Fields
    if "hybrid_layer_pattern" in data:
        fields = published = read_fields(_AsPublished, data)
        own = _of_published(published, data)
    else:
        fields = spelled = read_fields(_AsTransformers, data)
        own = _of_transformers(spelled)
    if fields.num_attention_heads % own["sliding_kv_heads"]:
        shared = f"{own['sliding_kv_heads']} key-value heads of sliding layers"
        raise ValueError(f"num_attention_heads: {fields.num_attention_heads} is no multiple of the {shared}")
    return ModelConfig(
        vocab_size=fields.vocab_size,
        hidden_size=fields.hidden_size,
        num_heads=fields.num_attention_heads,
        kv_heads=fields.num_key_value_heads,
        head_dim=fields.head_dim,
        v_head_dim=fields.v_head_dim,
        ffn_size=fields.intermediate_size,
        moe_ffn_size=fields.moe_intermediate_size,
        num_experts=fields.n_routed_experts,
        top_k=fields.num_experts_per_tok,
        sliding_window=fields.sliding_window,
        max_positions=fields.max_position_embeddings,
        value_scale=_or_one(fields.attention_value_scale),
        routed_scaling=_or_one(fields.routed_scaling_factor),
        init_std=fields.initializer_range,
        mtp_layers=fields.num_nextn_predict_layers,
        **own,
    )


def write(config: ModelConfig, published: bool) -> dict[str, Any]:
    """As transformers spells it where it can express the model, else, or where `published` is asked for, as published."""
    transformers = config.sliding_kv_heads == 2 * config.kv_heads and not published
    return {
        **(_to_transformers(config) if transformers else _to_published(config)),
        "dtype": "float32",
        **FIXED,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "v_head_dim": config.v_head_dim,
        "intermediate_size": config.ffn_size,
        "moe_intermediate_size": config.moe_ffn_size,
        "n_routed_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "sliding_window": config.sliding_window,
        "max_position_embeddings": config.max_positions,
        "attention_value_scale": config.value_scale,
        "routed_scaling_factor": config.routed_scaling,
        "initializer_range": config.init_std,
        **({"num_nextn_predict_layers": config.mtp_layers} if config.mtp_layers else {}),
    }


def _of_transformers(fields: _AsTransformers) -> dict[str, Any]:
    full, sliding = fields.rope_parameters.full_attention, fields.rope_parameters.sliding_attention
    if full.partial_rotary_factor != sliding.partial_rotary_factor:
        raise ValueError("rope_parameters: partial_rotary_factor differs between layer types, which is not supported")
    return {
        "sliding_kv_heads": 2 * fields.num_key_value_heads,
        "layer_types": tuple(fields.layer_types),
        "moe_layers": tuple(kind == "sparse" for kind in fields.mlp_layer_types),
        "rope_theta": full.rope_theta,
        "sliding_rope_theta": sliding.rope_theta,
        "partial_rotary_factor": full.partial_rotary_factor,
        "norm_eps": fields.rms_norm_eps,
    }


def _to_transformers(config: ModelConfig) -> dict[str, Any]:
    rope = {"rope_type": "default", "partial_rotary_factor": config.partial_rotary_factor}
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "layer_types": list(config.layer_types),
        "mlp_layer_types": ["sparse" if moe else "dense" for moe in config.moe_layers],
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": config.rope_theta},
            "sliding_attention": {**rope, "rope_theta": config.sliding_rope_theta},
        },
        "rms_norm_eps": config.norm_eps,
    }


def _of_published(fields: _AsPublished, data: dict[str, Any]) -> dict[str, Any]:
    same = {"swa_head_dim": "head_dim", "swa_v_head_dim": "v_head_dim", "swa_num_attention_heads": "num_attention_heads"}
    for key, value in {**FIXED_AS_PUBLISHED, **{ours: data[theirs] for ours, theirs in same.items()}}.items():
        if data.get(key, value) != value:
            raise ValueError(f"{key} is {data[key]!r}, only {value!r} is supported")
    if fields.rope_scaling and fields.rope_scaling.get("rope_type", "default") != "default":
        raise ValueError(f"rope_scaling: {fields.rope_scaling!r} is not supported")
    kinds: dict[int, LayerType] = {0: "full_attention", 1: "sliding_attention"}
    return {
        "sliding_kv_heads": fields.swa_num_key_value_heads,
        "layer_types": tuple(kinds[kind] for kind in fields.hybrid_layer_pattern),
        "moe_layers": tuple(bool(moe) for moe in fields.moe_layer_freq),
        "rope_theta": fields.rope_theta,
        "sliding_rope_theta": fields.swa_rope_theta,
        "partial_rotary_factor": fields.partial_rotary_factor,
        "norm_eps": fields.layernorm_epsilon,
    }


def _to_published(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2",
        **FIXED_AS_PUBLISHED,
        "swa_num_attention_heads": config.num_heads,
        "swa_num_key_value_heads": config.sliding_kv_heads,
        "swa_head_dim": config.head_dim,
        "swa_v_head_dim": config.v_head_dim,
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config.layer_types],
        "moe_layer_freq": [int(moe) for moe in config.moe_layers],
        "rope_theta": config.rope_theta,
        "swa_rope_theta": config.sliding_rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
        "layernorm_epsilon": config.norm_eps,
    }


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value
