"""Two ranks that attend in context parallel, and the bytes that are alive on them."""

import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # which PyTorch loads when a dispatch mode is entered, here once for all ranks
import torch.distributed as dist
from gloo_pool import compute_on_ranks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from gagar_mcore.models import spans, tile_attention
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.halo import Halo
from gagar_mcore.models.ring import Ring
from gagar_mcore.plan.context import TILE_AREA

RANKS = 2


class LiveBytes(TorchDispatchMode):
    """Of the storages that operations have made since it was entered; `peak` is the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.peak = 0

    @property
    def now(self) -> int:
        return sum(self.alive.values())

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self.alive:
                self.alive[key] = tensor.untyped_storage().nbytes()
                weakref.finalize(tensor.untyped_storage(), self.alive.pop, key, None)
        self.peak = max(self.peak, self.now)
        return result


def measure(model: ModelConfig, tokens: int, tp: int, target: Path) -> dict[str, float]:
    """By kind of layer, what the backward pass takes in bf16 beyond what the forward pass kept; a mean of the ranks, with tiles
    computed as on a GPU."""
    return compute_on_ranks(RANKS, target, __name__, partial(_all, model, tokens, tp))


def _all(model: ModelConfig, tokens: int, tp: int, rank: int) -> dict[str, float]:
    spans.tile_area = lambda _: TILE_AREA
    tile_attention.fused_forward, tile_attention.fused_backward = tile_attention.plain_forward, tile_attention.plain_backward
    return {kind: _mean(_backward_bytes(model, layer, tokens, tp)) for kind, layer in (("global", 0), ("sliding", 1))}


def _backward_bytes(model: ModelConfig, layer: int, tokens: int, tp: int) -> int:
    heads, groups = model.num_heads // tp, model.layer_kv_heads(layer) // tp
    bounds, device = np.array([0, tokens]), torch.device("cpu")
    exchange: Any = Ring.build(bounds, dist.group.WORLD, device)
    if model.is_sliding(layer):
        exchange = Halo.build(bounds, model.window_keys, dist.group.WORLD, device)
    sizes = (heads, model.head_dim), (groups, model.head_dim), (groups, model.v_head_dim)
    inputs = [torch.randn(tokens, *size, dtype=torch.bfloat16, requires_grad=True) for size in sizes]
    sinks = torch.zeros(heads, requires_grad=True) if model.is_sliding(layer) else None
    with LiveBytes() as live:
        output = exchange(*inputs, sinks)
        gradient = torch.ones_like(output)
        kept = live.peak = live.now
        output.backward(gradient)
    return live.peak - kept


def _mean(amount: int) -> float:
    amounts = torch.tensor(float(amount))
    dist.all_reduce(amounts)
    return float(amounts) / RANKS
