"""Floating-point operations of the policy, estimated from its sizes.

A matrix product of `[a, b]` with `[b, c]` counts 2abc; norms, rotations, softmax and other elementwise work count nothing.
One token's forward pass takes 2 operations for each weight of a matrix that it passes: attention projections, dense
feed-forward network, router, `top_k` experts and the output layer, but not the embedding, which is looked up.
Attention takes 2 heads (head_dim + v_head_dim) for each pair of a query and a key that it sees: n (n + 1) / 2 pairs in a
sequence of n tokens (the causal half), and with a window of w keys w (w + 1) / 2 + (n - w) w where n > w.
The backward pass takes twice the forward pass (one product for each operand's gradient), recomputation what it repeats.
The counts are those of Narayanan et al. 2021, arxiv.org/abs/2104.04473, with the causal half and the window taken as such.
Layers of multi-token prediction (`mtp`) each add their projection, sliding attention, dense network and the output layer; where
they are frozen they do not run.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.parameters import attention_parameters, expert_parameters

Recompute = Literal["none", "selective", "full"]
Floats = npt.NDArray[np.float64]


def training_flops(model: ModelConfig, tokens: npt.ArrayLike, recompute: Recompute = "none", mtp: bool = False) -> Floats:
    """Forward and backward pass over sequences of `tokens` tokens each, in the shape of `tokens`: three forward passes, and one
    more under `full`. What Transformer Engine computes again under `selective` are no products."""
    return forward_flops(model, tokens, mtp) * (4 if recompute == "full" else 3)


def forward_flops(model: ModelConfig, tokens: npt.ArrayLike, mtp: bool = False) -> Floats:
    """Forward pass over sequences of `tokens` tokens each, in the shape of `tokens`."""
    return linear_flops(model, mtp) * np.asarray(tokens, np.float64) + attention_flops(model, tokens, mtp)


def linear_flops(model: ModelConfig, mtp: bool = False) -> float:
    """Forward pass of one token without attention between tokens."""
    output = model.vocab_size * model.hidden_size
    weights = output + sum(_layer_weights(model, layer) for layer in range(model.num_layers))
    if mtp:
        projection = 2 * model.hidden_size**2
        weights += model.mtp_layers * (projection + _layer_weights(model, model.num_layers) + output)
    return 2.0 * weights


def _layer_weights(model: ModelConfig, layer: int) -> int:
    """Entries of the matrices that one token passes in a layer, counted as `ModelConfig.is_sliding` does."""
    sliding = model.is_sliding(layer)
    attention = attention_parameters(model, sliding) - (model.num_heads if sliding else 0)  # sinks multiply nothing
    if model.is_moe(layer):
        return attention + model.num_experts * model.hidden_size + model.top_k * expert_parameters(model)
    return attention + 3 * model.hidden_size * model.ffn_size


def attention_flops(model: ModelConfig, tokens: npt.ArrayLike, mtp: bool = False) -> Floats:
    """Scores and weighted values of all layers, forward, for sequences of `tokens` tokens each."""
    sliding = model.layer_types.count("sliding_attention")
    full = model.num_layers - sliding
    windowed = sliding + (model.mtp_layers if mtp else 0)
    pairs = full * seen_pairs(tokens) + windowed * seen_pairs(tokens, model.window_keys)
    return 2.0 * model.num_heads * (model.head_dim + model.v_head_dim) * pairs


def seen_pairs(tokens: npt.ArrayLike, window: int | None = None) -> Floats:
    """Pairs of a query and a key that it sees, itself included, in sequences of `tokens` tokens each."""
    length = np.asarray(tokens, np.float64)
    full = length if window is None else np.minimum(length, window)
    return full * (full + 1) / 2 + (length - full) * full
