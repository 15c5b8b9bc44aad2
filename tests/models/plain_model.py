"""The architecture in plain PyTorch, one sequence at a time, over a checkpoint's tensors.
Written from the published description, not from the modules under test."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import silu

from gagar_mcore.models.config import ModelConfig

Weights = Mapping[str, Tensor]


def hidden_states(model: ModelConfig, weights: Weights, tokens: Tensor, forced: Tensor | None = None) -> Tensor:
    """Final hidden states `[n, hidden]` for tokens `[n]`; forced `[n, MoE layers, top_k]`: experts, -1 is the router's choice."""
    hidden = weights["model.embed_tokens.weight"][tokens]
    for layer in range(model.num_layers):
        choice = forced[:, sum(model.moe_layers[:layer])] if forced is not None and model.is_moe(layer) else None
        hidden = decoder_layer(model, weights, f"model.layers.{layer}", layer, hidden, "post_attention_layernorm", choice)
    return norm(hidden, weights["model.norm.weight"], model.norm_eps)


def mtp_hidden_states(model: ModelConfig, weights: Weights, hidden: Tensor, tokens: Tensor) -> list[Tensor]:
    """For each depth k from 1, hidden states `[n - k, hidden]`: those of the place p guess token p + k + 1."""
    hiddens = []
    for depth in range(model.mtp_layers):
        name = f"model.mtp.layers.{depth}"
        hidden = hidden[: len(tokens) - depth - 1]
        embeddings = weights["model.embed_tokens.weight"][tokens[depth + 1 :]]
        parts = [
            norm(embeddings, weights[f"{name}.enorm.weight"], model.norm_eps),
            norm(hidden, weights[f"{name}.hnorm.weight"], model.norm_eps),
        ]
        hidden = torch.cat(parts, dim=-1) @ weights[f"{name}.eh_proj.weight"].T
        hidden = decoder_layer(model, weights, name, model.num_layers + depth, hidden, "pre_mlp_layernorm")
        hidden = norm(hidden, weights[f"{name}.final_layernorm.weight"], model.norm_eps)
        hiddens.append(hidden)
    return hiddens


def decoder_layer(
    model: ModelConfig, weights: Weights, name: str, layer: int, hidden: Tensor, second_norm: str, choice: Tensor | None = None
) -> Tensor:
    hidden = hidden + attention(
        model, weights, name, layer, norm(hidden, weights[f"{name}.input_layernorm.weight"], model.norm_eps)
    )
    normed = norm(hidden, weights[f"{name}.{second_norm}.weight"], model.norm_eps)
    if model.is_moe(layer):
        return hidden + experts(model, weights, f"{name}.mlp", normed, choice)
    return hidden + feed_forward(weights, f"{name}.mlp", normed)


def attention(model: ModelConfig, weights: Weights, name: str, layer: int, hidden: Tensor) -> Tensor:
    count, sliding = len(hidden), model.is_sliding(layer)
    kv_heads = model.sliding_kv_heads if sliding else model.kv_heads
    query, key, value = (hidden @ weights[f"{name}.self_attn.{part}_proj.weight"].T for part in "qkv")
    query, key, value = query.view(count, model.num_heads, -1), key.view(count, kv_heads, -1), value.view(count, kv_heads, -1)
    if model.qk_norm:
        query, key = (
            norm(x, weights[f"{name}.self_attn.{p}_norm.weight"], model.norm_eps) for x, p in ((query, "q"), (key, "k"))
        )
    theta = model.sliding_rope_theta if sliding else model.rope_theta
    query, key = rope(query, theta, model.rotary_dim), rope(key, theta, model.rotary_dim)
    key, value = (x.repeat_interleave(model.num_heads // kv_heads, dim=1) for x in (key, value))
    scores = torch.einsum("ihd,jhd->hij", query, key) / model.head_dim**0.5
    distance = torch.arange(count)[:, None] - torch.arange(count)
    hidden_keys = distance < 0
    if sliding:
        before = model.sliding_window - 1 if model.window_includes_self else model.sliding_window
        hidden_keys |= distance > before
    scores = scores.masked_fill(hidden_keys, -torch.inf)
    if sliding:
        sinks = weights[f"{name}.self_attn.attention_sink_bias"][:, None, None].expand(-1, count, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    probabilities = scores.softmax(-1)[..., :count]
    context = torch.einsum("hij,jhd->ihd", probabilities, value * model.value_scale)
    return context.flatten(1) @ weights[f"{name}.self_attn.o_proj.weight"].T


def experts(model: ModelConfig, weights: Weights, name: str, hidden: Tensor, choice: Tensor | None) -> Tensor:
    logits = hidden @ weights[f"{name}.gate.weight"].T
    scores = logits.sigmoid() if model.router_scores == "sigmoid" else logits.softmax(-1)
    bias = weights.get(f"{name}.gate.e_score_correction_bias", 0)
    chosen = (scores + bias).topk(model.top_k).indices
    if choice is not None:
        chosen = torch.where(choice >= 0, choice, chosen)
    shares = scores.gather(1, chosen)
    shares = model.routed_scaling * shares / shares.sum(-1, keepdim=True)
    output = torch.zeros_like(hidden)
    for expert in range(model.num_experts):
        share = (shares * (chosen == expert)).sum(-1, keepdim=True)
        output = output + share * feed_forward(weights, f"{name}.experts.{expert}", hidden)
    return output


def feed_forward(weights: Weights, name: str, hidden: Tensor) -> Tensor:
    gate, up = (hidden @ weights[f"{name}.{part}_proj.weight"].T for part in ("gate", "up"))
    return (silu(gate) * up) @ weights[f"{name}.down_proj.weight"].T


def norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    return hidden * (hidden.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rope(heads: Tensor, theta: float, dim: int) -> Tensor:
    """Pairs (i, i + dim / 2) of the first `dim` dimensions turn by position times theta^(-2 i / dim)."""
    half = dim // 2
    angles = torch.arange(len(heads))[:, None, None] * theta ** (-torch.arange(half) * 2 / dim)
    first, second = heads[..., :half], heads[..., half:dim]
    turned = [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()]
    return torch.cat([*turned, heads[..., dim:]], dim=-1)
