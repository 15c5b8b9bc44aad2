"""Parameters of a model, counted from its sizes."""

from dataclasses import dataclass

from gagar_mcore.models.config import ModelConfig

FP8_BLOCK = 128  # rows and columns that share one scale


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by kind; `mtp` are those of the multi-token-prediction layers, which no other kind contains."""

    embeddings: int  # input and output
    attention: int  # with the sinks of sliding layers
    dense: int
    router: int  # with the selection bias
    experts: int
    norms: int
    mtp: int

    @property
    def model(self) -> int:
        """Without multi-token prediction."""
        return self.embeddings + self.attention + self.dense + self.router + self.experts + self.norms


def count_parameters(model: ModelConfig) -> ParameterCount:
    moe_layers = sum(model.moe_layers)
    hidden = model.hidden_size
    return ParameterCount(
        embeddings=2 * model.vocab_size * hidden,
        attention=sum(attention_parameters(model, model.is_sliding(layer)) for layer in range(model.num_layers)),
        dense=(model.num_layers - moe_layers) * 3 * hidden * model.ffn_size,
        router=moe_layers * model.num_experts * (hidden + model.selection_bias),
        experts=moe_layers * model.num_experts * expert_parameters(model),
        norms=(2 * model.num_layers + 1) * hidden + (2 * model.num_layers * model.head_dim if model.qk_norm else 0),
        mtp=model.mtp_layers * mtp_parameters(model),
    )


def active_parameters(model: ModelConfig) -> int:
    """Those that one token passes: `top_k` experts of each layer instead of all."""
    count = count_parameters(model)
    return count.model - count.experts + sum(model.moe_layers) * model.top_k * expert_parameters(model)


def attention_parameters(model: ModelConfig, sliding: bool) -> int:
    """One layer's projections and, where it slides, its sinks."""
    kv_heads = model.sliding_kv_heads if sliding else model.kv_heads
    queries, values = model.num_heads * model.head_dim, model.num_heads * model.v_head_dim
    keys_and_values = kv_heads * (model.head_dim + model.v_head_dim)
    return model.hidden_size * (queries + keys_and_values + values) + (model.num_heads if sliding else 0)


def expert_parameters(model: ModelConfig) -> int:
    return 3 * model.hidden_size * model.moe_ffn_size


def mtp_parameters(model: ModelConfig) -> int:
    """One layer: projection of token and hidden state, five norms, sliding attention, dense feed-forward network."""
    hidden = model.hidden_size
    return 2 * hidden * hidden + 5 * hidden + attention_parameters(model, sliding=True) + 3 * hidden * model.ffn_size


def fp8_scales(model: ModelConfig) -> int:
    """Scale entries of a checkpoint whose fused QKV, feed-forward and expert weights are FP8 in blocks of 128 x 128, multi-token
    prediction included. The fused QKV is stored in as many shards as global layers have key-value heads, each of whole blocks."""
    layers = [model.is_sliding(layer) for layer in range(model.num_layers)] + [True] * model.mtp_layers
    qkv = sum(_qkv_scales(model, sliding) for sliding in layers)
    dense_layers = model.num_layers - sum(model.moe_layers) + model.mtp_layers
    dense = dense_layers * 3 * _blocks(model.ffn_size) * _blocks(model.hidden_size)
    expert = 3 * _blocks(model.moe_ffn_size) * _blocks(model.hidden_size)
    return qkv + dense + sum(model.moe_layers) * model.num_experts * expert


def _qkv_scales(model: ModelConfig, sliding: bool) -> int:
    kv_heads = model.sliding_kv_heads if sliding else model.kv_heads
    rows = model.num_heads * model.head_dim + kv_heads * (model.head_dim + model.v_head_dim)
    return model.kv_heads * _blocks(rows // model.kv_heads) * _blocks(model.hidden_size)


def _blocks(size: int) -> int:
    return -(-size // FP8_BLOCK)
