"""Softmax attention over spans of packed tokens, one tile at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gagar_mcore.models import tile_attention
from gagar_mcore.models.spans import Index, Spans, Tile


def attention(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, spans: Spans) -> Tensor:
    """query `[Nq, H, d]`, key `[Nk, G, d]`, value `[Nk, G, dv]` with H a multiple of G, sinks `[H]`: logits that take probability
    and give no value. Returns `[Nq, H, dv]`. What is kept for the backward pass grows with the tokens, not with their square."""
    output: Tensor = _Attention.apply(query, key, value, sinks, spans)
    return output


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, spans: Spans) -> Tensor:
        output, lse = with_sinks(*attend(query, key, value, spans), sinks)
        output = output.to(value.dtype)
        ctx.spans = spans
        ctx.save_for_backward(query, key, value, sinks, output, lse)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, output, lse = ctx.saved_tensors
        parts = attend_backward(gradient, query, key, value, output, lse, ctx.spans)
        into = (part.to(tensor.dtype) for part, tensor in zip(parts, (query, key, value), strict=True))
        return *into, sink_gradient(sinks, gradient, output, lse), None


def attend(query: Tensor, key: Tensor, value: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """Attention without sinks, and the logarithm of its denominator, by which parts over different keys are merged:
    output `[Nq, H, dv]` and lse `[Nq, H]`, at least float32; 0 and minus infinity for queries of no span."""
    if (whole := spans.whole(len(key))) is not None:
        return _forward(query, key, value, whole)
    precision = torch.promote_types(query.dtype, torch.float32)
    heads = query.shape[1]
    output = query.new_zeros(len(query) + 1, heads, value.shape[2], dtype=precision)
    lse = query.new_full((len(query) + 1, heads), float("-inf"), dtype=precision)
    for tile in spans.tiles:
        output[tile.results], lse[tile.results] = _forward(query, key, value, tile)
    return output[:-1], lse[:-1]


def attend_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, spans: Spans
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, at least float32, for the `gradient` `[Nq, H, dv]` of the whole output.

    output `[Nq, H, dv]`, lse `[Nq, H]`: over all keys of a query and its sink, also where `spans` are a part of them."""
    if (whole := spans.whole(len(key))) is not None:
        return _backward(gradient, query, key, value, output, lse, whole)
    precision = lse.dtype
    grad_query = torch.zeros(len(query) + 1, *query.shape[1:], dtype=precision, device=query.device)
    grad_key, grad_value = torch.zeros_like(key, dtype=precision), torch.zeros_like(value, dtype=precision)
    lse = torch.cat([lse, lse.new_full((1, lse.shape[1]), float("inf"))])  # filling gets no probability
    for tile in spans.tiles:
        parts = _backward(gradient, query, key, value, output, lse, tile)
        grad_query[tile.results] = parts[0]
        _add(grad_key, tile.keys, parts[1])
        _add(grad_value, tile.keys, parts[2])
    return grad_query[:-1], grad_key, grad_value


def with_sinks(output: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """What `attend` returned, after the sinks have taken their probability."""
    if sinks is None:
        return output, lse
    joined = torch.logaddexp(lse, sinks.to(lse.dtype))
    return output * (lse - joined).exp()[..., None], joined


def sink_gradient(sinks: Tensor | None, gradient: Tensor, output: Tensor, lse: Tensor) -> Tensor | None:
    """That of these queries alone, `[H]`; arguments as for `attend_backward`."""
    if sinks is None:
        return None
    delta = (gradient * output).sum(-1, dtype=lse.dtype)
    return -((sinks.to(lse.dtype) - lse).exp() * delta).sum(0).to(sinks.dtype)


def merge(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the keys of two parts; each query has seen a key in the first."""
    joined = torch.logaddexp(lse, other_lse)
    first, second = ((part - joined).exp()[..., None] for part in (lse, other_lse))
    return output.mul_(first).addcmul_(other, second), joined


def _forward(query: Tensor, key: Tensor, value: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Of `tile.results`."""
    queries, keys, values = _rows(query, tile, tile.queries), _rows(key, tile, tile.keys), _rows(value, tile, tile.keys)
    output, lse = tile_attention.forward(queries, keys, values, tile.mask(queries))
    return output.flatten(0, 1), lse.flatten(0, 1)


def _backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, tile: Tile
) -> tuple[Tensor, Tensor, Tensor]:
    """Of `tile.results`, and the part of `tile.keys`."""
    gradients, queries, outputs = (_rows(tensor, tile, tile.queries) for tensor in (gradient, query, output))
    keys, values = (_rows(tensor, tile, tile.keys) for tensor in (key, value))
    parts = tile_attention.backward(gradients, queries, keys, values, outputs, _rows(lse, tile, tile.results), tile.mask(queries))
    grad_query, grad_key, grad_value = (part.flatten(0, 1) for part in parts)
    return grad_query, grad_key, grad_value


def _rows(tensor: Tensor, tile: Tile, index: Index) -> Tensor:
    """`[N, ...]` -> `[n, r or m, ...]`, to float32 at least: on a CPU bfloat16 products are slower by far, and rounded."""
    picked = tensor[index].unflatten(0, (tile.blocks, -1))
    return picked.to(torch.promote_types(tensor.dtype, torch.float32))


def _add(total: Tensor, index: Index, part: Tensor) -> None:
    if isinstance(index, slice):
        total[index] += part
    else:
        total.index_add_(0, index, part)
