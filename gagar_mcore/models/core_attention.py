"""Softmax attention over spans of packed tokens, in plain PyTorch, one tile of scores at a time."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gagar_mcore.models.spans import Spans, Tile

LN2 = math.log(2)


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
        delta = (gradient * output).sum(-1, dtype=lse.dtype)
        parts = attend_backward(gradient, query, key, value, lse, delta, ctx.spans)
        into = (part.to(tensor.dtype) for part, tensor in zip(parts, (query, key, value), strict=True))
        return *into, sink_gradient(sinks, lse, delta), None


def attend(query: Tensor, key: Tensor, value: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """Attention without sinks, and the logarithm of its denominator, by which parts over different keys are merged:
    output `[Nq, H, dv]` and lse `[Nq, H]`, at least float32; 0 and minus infinity for queries of no span.

    A fused kernel can stand here if it returns both, and its backward kernel, given the merged lse, in `attend_backward`:
    variable-length FlashAttention does, with `spans` as cumulative lengths and its mask aligned at the bottom right. None has
    been executed."""
    precision = torch.promote_types(query.dtype, torch.float32)
    heads, groups, scale = query.shape[1], key.shape[1], _scale(query) / LN2
    output = query.new_zeros(len(query) + 1, heads, value.shape[2], dtype=precision)
    lse = query.new_full((len(query) + 1, heads), float("-inf"), dtype=precision)
    for tile in spans.tiles:
        scores = _scores(_query_rows(query, tile, groups).mul(scale), _key_rows(key, tile), tile)
        largest = scores.amax(-1, keepdim=True)
        total = scores.sub_(largest).exp2_().sum(-1, keepdim=True)
        context = scores @ _key_rows(value, tile) / total
        output.index_copy_(0, tile.results, _packed_rows(context, tile))
        lse.index_copy_(0, tile.results, _packed_rows((largest + total.log2()) * LN2, tile)[..., 0])
    return output[:-1], lse[:-1]


def attend_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, delta: Tensor, spans: Spans
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, at least float32, for the `gradient` `[Nq, H, dv]` of the whole output.

    lse `[Nq, H]`: over all keys of a query and its sink, also where `spans` are a part of them. delta `[Nq, H]`: sum over dv of
    gradient and whole output. With s the scores: P = exp(s - lse), ds = P (gradient value^T - delta) (Dao et al. 2022, arXiv
    2205.14135)."""
    precision, groups, scale = lse.dtype, key.shape[1], _scale(query)
    grad_query = torch.zeros(len(query) + 1, *query.shape[1:], dtype=precision, device=query.device)
    grad_key, grad_value = torch.zeros_like(key, dtype=precision), torch.zeros_like(value, dtype=precision)
    filling = lse.new_full((1, lse.shape[1]), float("inf"))  # gets no probability
    binary_lse = torch.cat([lse, filling]) / LN2
    for tile in spans.tiles:
        queries, keys = _query_rows(query, tile, groups).mul(scale / LN2), _key_rows(key, tile)
        grad_rows = _query_rows(gradient, tile, groups)
        probabilities = _scores(queries, keys, tile).sub_(_head_rows(binary_lse, tile.results, tile, groups)).exp2_()
        grad_scores = grad_rows @ _key_rows(value, tile).transpose(2, 3)
        grad_scores.sub_(_head_rows(delta, tile.queries, tile, groups)).mul_(probabilities)
        grad_query.index_copy_(0, tile.results, _packed_rows(grad_scores @ keys, tile).mul_(scale))
        _add_key_rows(grad_key, (grad_scores.transpose(2, 3) @ queries).mul_(LN2), tile)
        _add_key_rows(grad_value, probabilities.transpose(2, 3) @ grad_rows, tile)
    return grad_query[:-1], grad_key, grad_value


def with_sinks(output: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """What `attend` returned, after the sinks have taken their probability."""
    if sinks is None:
        return output, lse
    joined = torch.logaddexp(lse, sinks.to(lse.dtype))
    return output * (lse - joined).exp()[..., None], joined


def sink_gradient(sinks: Tensor | None, lse: Tensor, delta: Tensor) -> Tensor | None:
    """That of these queries alone, `[H]`; arguments as for `attend_backward`."""
    if sinks is None:
        return None
    return -((sinks.to(lse.dtype) - lse).exp() * delta).sum(0).to(sinks.dtype)


def merge(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the keys of two parts; each query has seen a key in the first."""
    joined = torch.logaddexp(lse, other_lse)
    first, second = ((part - joined).exp()[..., None] for part in (lse, other_lse))
    return output.mul_(first).addcmul_(other, second), joined


def _scale(query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def _scores(queries: Tensor, keys: Tensor, tile: Tile) -> Tensor:
    """`[n, G, r * H / G, m]`, minus infinity where a query does not see the key. The queries come scaled and over ln 2, for
    powers of 2: those of e take ten times as long on a CPU where they come out as 0."""
    scores = queries @ keys.transpose(2, 3)
    bias = tile.bias(scores.dtype)
    if bias is not None:
        count, height, width = tile.shape
        scores.view(count, scores.shape[1], height, -1, width).add_(bias)
    return scores


def _head_rows(tensor: Tensor, rows: Tensor, tile: Tile, groups: int) -> Tensor:
    """`[N, H, ...]` -> `[n, G, r * H / G, -1]`: the heads of a group side by side at each place."""
    count, height, _ = tile.shape
    picked = tensor.index_select(0, rows).view(count, height, groups, tensor.shape[1] // groups, -1)
    return picked.transpose(1, 2).reshape(count, groups, height * picked.shape[3], -1)


def _query_rows(tensor: Tensor, tile: Tile, groups: int) -> Tensor:
    return _widened(_head_rows(tensor, tile.queries, tile, groups))


def _key_rows(tensor: Tensor, tile: Tile) -> Tensor:
    """`[N, G, d]` -> `[n, G, m, d]`"""
    count, _, width = tile.shape
    return _widened(tensor.index_select(0, tile.keys).view(count, width, *tensor.shape[1:]).transpose(1, 2)).contiguous()


def _widened(tensor: Tensor) -> Tensor:
    """To float32 at least: on a CPU bfloat16 products are slower by far, and rounded."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _packed_rows(tensor: Tensor, tile: Tile) -> Tensor:
    """`[n, G, r * H / G, d]` -> `[n * r, H, d]`"""
    count, height, _ = tile.shape
    groups, size = tensor.shape[1], tensor.shape[3]
    return tensor.view(count, groups, height, -1, size).transpose(1, 2).reshape(count * height, -1, size)


def _add_key_rows(total: Tensor, part: Tensor, tile: Tile) -> None:
    """part: `[n, G, m, d]`"""
    total.index_add_(0, tile.keys, part.transpose(1, 2).reshape(len(tile.keys), *total.shape[1:]))
