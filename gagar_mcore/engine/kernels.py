"""Attention and experts of the engine's model, in few operations: a decode step of a small model is made of call overhead.

Both are registered with transformers under `NAME` and take the place of its eager functions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

NAME = "gagar"
DENSE_PAIRS = 512


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Grouped-query attention with an optional sink: softmax over [scores, sink], the sink's share dropped.

    query: `[n, heads, length, dim]`; key, value: `[n, kv_heads, keys, dim]`; attention_mask: additive,
    `[n * kv_heads, heads / kv_heads * length, keys]`. Returns `[n, length, heads, value_dim]`.
    """
    rows, heads, length, _dim = query.shape
    scores = torch.baddbmm(
        attention_mask,
        query.reshape(*attention_mask.shape[:2], -1),
        key.flatten(0, 1).transpose(1, 2),
        alpha=scaling,
    )
    if module.sinks is not None:
        sinks = module.sinks.view(1, heads, 1).expand(rows, heads, length).reshape(*scores.shape[:2], 1)
        probabilities = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        probabilities = scores.softmax(dim=-1)
    mixed = torch.bmm(probabilities, value.flatten(0, 1))
    return mixed.view(rows, heads, length, -1).transpose(1, 2), None


def experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Mixture of experts on `[tokens, hidden]`: all experts on every token where those are few, else grouped by expert."""
    if len(hidden_states) * module.num_experts > DENSE_PAIRS:
        return grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
    count, _, hidden = module.gate_up_proj.shape
    gate, up = (
        functional.linear(hidden_states, module.gate_up_proj.view(-1, hidden)).view(len(hidden_states), count, 2, -1).unbind(2)
    )
    routing = hidden_states.new_zeros(len(hidden_states), count).scatter_(1, top_k_index, top_k_weights)
    inner = module.act_fn(gate) * up * routing[..., None]
    return functional.linear(inner.flatten(1), module.down_proj.transpose(0, 1).reshape(hidden, -1))


AttentionInterface.register(NAME, attention)
ALL_EXPERTS_FUNCTIONS.register(NAME, experts)
