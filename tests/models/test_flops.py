from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.flops import attention_flops, forward_flops, linear_flops, seen_pairs, training_flops
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.parameters import active_parameters
from gagar_mcore.models.presets import PRESETS, preset

SMALL = ModelConfig(
    vocab_size=100,
    hidden_size=8,
    num_heads=4,
    kv_heads=1,
    sliding_kv_heads=2,
    head_dim=6,
    v_head_dim=5,
    layer_types=("full_attention", "sliding_attention"),
    moe_layers=(False, True),
    ffn_size=16,
    moe_ffn_size=12,
    num_experts=3,
    top_k=2,
    sliding_window=2,
    max_positions=64,
)
SMALL_QWEN = replace(
    preset("qwen3-30b-a3b"),
    vocab_size=256,
    hidden_size=64,
    num_heads=4,
    kv_heads=2,
    sliding_kv_heads=2,
    head_dim=16,
    v_head_dim=16,
    ffn_size=96,
    moe_ffn_size=32,
    num_experts=8,
    top_k=2,
    layer_types=("full_attention",) * 2,
    moe_layers=(True, False),
)


def test_a_small_model_counted_by_hand():
    full = 8 * (4 * 6 + 6 + 5) + 4 * 5 * 8  # projections of four query heads, one of keys and one of values; output
    sliding = 8 * (4 * 6 + 2 * 6 + 2 * 5) + 4 * 5 * 8
    dense, experts, router = 3 * 8 * 16, 2 * 3 * 8 * 12, 3 * 8
    assert linear_flops(SMALL) == 2 * (full + sliding + dense + experts + router + 100 * 8)
    # Three tokens see 1 + 2 + 3 keys on the global layer, 1 + 2 + 2 through the window.
    assert attention_flops(SMALL, 3) == 2 * 4 * (6 + 5) * (6 + 5)


def test_multi_token_prediction_adds_its_layers_where_it_trains():
    model = replace(SMALL, mtp_layers=2)
    sliding = 8 * (4 * 6 + 2 * 6 + 2 * 5) + 4 * 5 * 8
    layer = 2 * 8 * 8 + sliding + 3 * 8 * 16 + 100 * 8

    assert linear_flops(model) == linear_flops(SMALL)
    assert linear_flops(model, mtp=True) == linear_flops(SMALL) + 2 * 2 * layer
    assert attention_flops(model, 3, mtp=True) == attention_flops(SMALL, 3) + 2 * 2 * 4 * (6 + 5) * 5
    assert training_flops(model, 3, mtp=True) == 3 * forward_flops(model, 3, mtp=True)


@pytest.mark.parametrize("window", [1, 3, 8, 20, None])
def test_pairs_are_those_of_the_mask(window):
    distance = np.arange(12)[:, None] - np.arange(12)
    seen = (distance >= 0) & (distance < (window or 12))
    assert seen_pairs(12, window) == seen.sum()


@pytest.mark.parametrize("model", [preset("tiny"), SMALL_QWEN], ids=["mimo_v2", "qwen3_moe"])
def test_transformers_runs_as_many(model):
    """Its eager attention computes the whole square of scores on every layer, also where they are masked."""
    config = AutoConfig.for_model(**to_hf(model), experts_implementation="eager", attn_implementation="eager")
    theirs = AutoModelForCausalLM.from_config(config)
    tokens = torch.randint(0, model.vocab_size, (1, 48))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(tokens)
    square = 2 * model.num_layers * model.num_heads * (model.head_dim + model.v_head_dim) * 48**2
    assert counter.get_total_flops() == pytest.approx(48 * linear_flops(model) + square, rel=1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_short_sequences_cost_two_operations_for_each_active_weight(name):
    model = preset(name)
    embedding = model.vocab_size * model.hidden_size
    assert linear_flops(model) == pytest.approx(2 * (active_parameters(model) - embedding), rel=5e-3)


def test_training_is_three_forward_passes_and_what_is_recomputed():
    model, lengths = preset("mimo-v2-flash"), np.array([1, 500, 100_000])
    forward = forward_flops(model, lengths)

    for way in ("none", "selective"):
        assert training_flops(model, lengths, way) == pytest.approx(3 * forward)
    assert training_flops(model, lengths, "full") == pytest.approx(4 * forward)
