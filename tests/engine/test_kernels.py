from types import SimpleNamespace

import pytest
import torch
from transformers.models.mimo_v2_flash.modeling_mimo_v2_flash import MiMoV2FlashExperts, eager_attention_forward

from gagar_mcore.engine.kernels import DENSE_PAIRS, attention, experts


@pytest.mark.parametrize("sink", [True, False])
def test_attention_equals_that_of_transformers(sink):
    torch.manual_seed(0)
    rows, heads, kv_heads, length, keys = 3, 6, 2, 4, 9
    query, key = torch.randn(rows, heads, length, 8), torch.randn(rows, kv_heads, keys, 8)
    value = torch.randn(rows, kv_heads, keys, 5)
    mask = torch.zeros(rows, 1, length, keys).masked_fill(torch.rand(rows, 1, length, keys) < 0.3, float("-inf"))
    module = SimpleNamespace(sinks=torch.randn(heads) if sink else None, num_key_value_groups=heads // kv_heads, training=False)
    expected, _ = eager_attention_forward(module, query, key, value, mask, scaling=0.3)
    folded = mask.repeat(1, kv_heads, heads // kv_heads, 1).flatten(0, 1)
    ours, _ = attention(module, query, key, value, folded, scaling=0.3)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [1, DENSE_PAIRS // 8, DENSE_PAIRS // 8 + 1])
def test_experts_equal_those_of_transformers(tokens):
    """On both sides of the bound between all experts at once and grouping."""
    torch.manual_seed(0)
    config = SimpleNamespace(
        num_local_experts=8, hidden_size=16, moe_intermediate_size=12, hidden_act="silu", _experts_implementation="eager"
    )
    module = MiMoV2FlashExperts(config)
    torch.nn.init.normal_(module.gate_up_proj)
    torch.nn.init.normal_(module.down_proj)
    hidden, weights = torch.randn(tokens, 16), torch.rand(tokens, 2)
    chosen = torch.stack([torch.randperm(8)[:2] for _ in range(tokens)])
    torch.testing.assert_close(experts(module, hidden, chosen, weights), module(hidden, chosen, weights), rtol=1e-5, atol=1e-4)
