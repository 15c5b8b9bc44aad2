"""The MiMo-V2 architecture as data, read from and written to a Hugging Face `config.json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LayerType = Literal["full_attention", "sliding_attention"]
MODEL_TYPE = "mimo_v2_flash"

# What the Megatron modules here compute; any other value of these keys is another architecture.
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}


@dataclass(frozen=True, slots=True)
class MimoV2Config:
    """Sizes of one model. Sliding layers see `sliding_window` keys, the query's own included, and carry one learnable sink a
    head; the first `int(head_dim * partial_rotary_factor)` dimensions of a head rotate; values are scaled by `value_scale`."""

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
    rope_theta: float = 5e6
    sliding_rope_theta: float = 1e4
    partial_rotary_factor: float = 0.334
    value_scale: float = 0.707
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

    def is_sliding(self, layer: int) -> bool:
        return self.layer_types[layer] == "sliding_attention"

    def layer_kv_heads(self, layer: int) -> int:
        return self.sliding_kv_heads if self.is_sliding(layer) else self.kv_heads


def read_config(directory: Path) -> MimoV2Config:
    """The architecture of a checkpoint directory. Raises ValueError where `config.json` is missing or of another model."""
    path = directory / "config.json"
    try:
        return from_hf(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; name a directory in Hugging Face format") from error
    except KeyError as error:
        raise ValueError(f"{path}: field {error} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def from_hf(data: dict[str, Any]) -> MimoV2Config:
    """Raises KeyError for a missing field and ValueError for one that this implementation does not compute."""
    if data["model_type"] != MODEL_TYPE:
        raise ValueError(f"model_type {data['model_type']!r} is not {MODEL_TYPE!r}")
    for key, value in _FIXED.items():
        if data.get(key, value) != value:
            raise ValueError(f"{key} is {data[key]!r}, only {value!r} is supported")
    full, sliding = (_rope(data["rope_parameters"][kind]) for kind in ("full_attention", "sliding_attention"))
    if full["partial_rotary_factor"] != sliding["partial_rotary_factor"]:
        raise ValueError("rope_parameters: partial_rotary_factor differs between layer types, which is not supported")
    return MimoV2Config(
        vocab_size=data["vocab_size"],
        hidden_size=data["hidden_size"],
        num_heads=data["num_attention_heads"],
        kv_heads=data["num_key_value_heads"],
        sliding_kv_heads=2 * data["num_key_value_heads"],
        head_dim=data["head_dim"],
        v_head_dim=data["v_head_dim"],
        layer_types=tuple(data["layer_types"]),
        moe_layers=tuple(kind == "sparse" for kind in data["mlp_layer_types"]),
        ffn_size=data["intermediate_size"],
        moe_ffn_size=data["moe_intermediate_size"],
        num_experts=data["n_routed_experts"],
        top_k=data["num_experts_per_tok"],
        sliding_window=data["sliding_window"],
        max_positions=data["max_position_embeddings"],
        rope_theta=full["rope_theta"],
        sliding_rope_theta=sliding["rope_theta"],
        partial_rotary_factor=full["partial_rotary_factor"],
        value_scale=_or_one(data["attention_value_scale"]),
        routed_scaling=_or_one(data["routed_scaling_factor"]),
        norm_eps=data["rms_norm_eps"],
        init_std=data["initializer_range"],
    )


def to_hf(config: MimoV2Config) -> dict[str, Any]:
    """The `config.json` that transformers reads. Raises ValueError for sizes that this format cannot express."""
    if config.sliding_kv_heads != 2 * config.kv_heads:
        raise ValueError(f"{MODEL_TYPE} has twice as many key-value heads on sliding layers, not {config.sliding_kv_heads}")
    rope = {"rope_type": "default", "partial_rotary_factor": config.partial_rotary_factor}
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": MODEL_TYPE,
        "dtype": "float32",
        **_FIXED,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "v_head_dim": config.v_head_dim,
        "layer_types": list(config.layer_types),
        "mlp_layer_types": ["sparse" if moe else "dense" for moe in config.moe_layers],
        "intermediate_size": config.ffn_size,
        "moe_intermediate_size": config.moe_ffn_size,
        "n_routed_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "sliding_window": config.sliding_window,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": config.rope_theta},
            "sliding_attention": {**rope, "rope_theta": config.sliding_rope_theta},
        },
        "attention_value_scale": config.value_scale,
        "routed_scaling_factor": config.routed_scaling,
        "rms_norm_eps": config.norm_eps,
        "initializer_range": config.init_std,
    }


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters["rope_type"] != "default":
        raise ValueError(f"rope_parameters: rope_type {parameters['rope_type']!r} is not supported")
    return parameters


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value
