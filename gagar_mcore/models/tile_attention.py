"""Attention of one tile, n blocks of r queries against m keys: PyTorch's fused kernel on a CPU, matrix products elsewhere.

query `[n, r, H, d]`, key `[n, m, G, d]`, value `[n, m, G, dv]` with H a multiple of G, all float32 or float64. mask: `[r, m]`,
minus infinity for the keys that a query does not see, else 0; or CAUSAL, with r = m: it sees those up to its own place; or
None: it sees all."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

CAUSAL: Literal["causal"] = "causal"
Mask = Tensor | Literal["causal"] | None

aten = torch.ops.aten


def tile_area(device: torch.device) -> int:
    """Queries times keys of a tile, for one head: where the products are plain ones, they hold as many scores."""
    return 1 << 20 if device.type == "cpu" else 1 << 17


def forward(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Output `[n, r, H, dv]`, and lse `[n, r, H]`: the logarithm of its denominator."""
    return (fused_forward if query.device.type == "cpu" else plain_forward)(query, key, value, mask)


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, mask: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value for the `gradient` of the output. output and lse may be those over more keys than these;
    where lse is infinite, the gradient is 0. With s the scores: P = exp(s - lse), ds = P (gradient value^T - sum over dv of
    gradient and output) (Dao et al. 2022, arXiv 2205.14135)."""
    run = fused_backward if query.device.type == "cpu" else plain_backward
    return run(gradient, query, key, value, output, lse, mask)


def fused_forward(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    run = aten._scaled_dot_product_flash_attention_for_cpu
    output, lse = run(*_heads_first(query, key, value), 0.0, mask is CAUSAL, attn_mask=_bias(mask), scale=_scale(query))
    return output[..., : value.shape[3]].transpose(1, 2), lse.transpose(1, 2)


def fused_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, mask: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    heads = _heads_first(gradient, query, key, value, output)
    run = aten._scaled_dot_product_flash_attention_for_cpu_backward
    gradients = run(*heads, lse.transpose(1, 2), 0.0, mask is CAUSAL, attn_mask=_bias(mask), scale=_scale(query))
    grad_query, grad_key, grad_value = (part.transpose(1, 2) for part in gradients)
    return grad_query[..., : query.shape[3]], grad_key[..., : key.shape[3]], grad_value[..., : value.shape[3]]


def _bias(mask: Mask) -> Tensor | None:
    return mask if isinstance(mask, Tensor) else None


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """`[n, r, H, d]` -> `[n, H, r, widest d]`: the kernel takes heads of one width."""
    widest = max(tensor.shape[3] for tensor in tensors)
    return [(pad(each, (0, missing)) if (missing := widest - each.shape[3]) else each).transpose(1, 2) for each in tensors]


def plain_forward(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, mask)
    largest = scores.amax(-1, keepdim=True)
    total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
    context = scores @ value.transpose(1, 2) / total
    return _apart(context, query), _apart(largest + total.log(), query)[..., 0]


def plain_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, mask: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    groups, scale = key.shape[2], _scale(query)
    delta = (gradient * output).sum(-1, keepdim=True)
    grad_rows = _together(gradient, groups)
    probabilities = _scores(query, key, mask).sub_(_together(lse[..., None], groups)).exp_()
    grad_scores = grad_rows @ value.permute(0, 2, 3, 1)
    grad_scores.sub_(_together(delta, groups)).mul_(probabilities).mul_(scale)
    grad_query = _apart(grad_scores @ key.transpose(1, 2), query)
    grad_key = grad_scores.transpose(2, 3) @ _together(query, groups)
    return grad_query, grad_key.transpose(1, 2), (probabilities.transpose(2, 3) @ grad_rows).transpose(1, 2)


def _scores(query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """`[n, G, r * H / G, m]`"""
    scores = _together(query, key.shape[2]).mul(_scale(query)) @ key.permute(0, 2, 3, 1)
    bias = query.new_full((query.shape[1], key.shape[1]), float("-inf")).triu_(1) if mask is CAUSAL else _bias(mask)
    if bias is not None:
        scores.unflatten(2, (query.shape[1], -1)).add_(bias[:, None])
    return scores


def _scale(query: Tensor) -> float:
    return float(query.shape[3] ** -0.5)


def _together(tensor: Tensor, groups: int) -> Tensor:
    """`[n, r, H, d]` -> `[n, G, r * H / G, d]`: the heads of a group side by side."""
    return tensor.unflatten(2, (groups, -1)).transpose(1, 2).flatten(2, 3)


def _apart(tensor: Tensor, query: Tensor) -> Tensor:
    """Back from `_together`."""
    return tensor.unflatten(2, (query.shape[1], -1)).transpose(1, 2).flatten(2, 3)
