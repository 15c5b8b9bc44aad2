"""Rotary position embedding of the first dimensions of each head."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rotary_table(positions: Tensor, theta: float, dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[T, 1, dim / 2]` float32 for positions `[T]`."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    angles = (positions[:, None].float() * (1.0 / theta**exponents))[:, None]
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + dim / 2) of the first `dim` dimensions of `heads` `[T, ..., head_dim]`, and keep the others.

    cos, sin `[T, 1, dim / 2]`."""
    shape = (len(cos), *[1] * (heads.dim() - 2), -1)
    kept = cos.new_ones(len(cos), 1, heads.shape[-1] - 2 * cos.shape[-1])
    factors = torch.cat(
        [cos, cos, kept], dim=-1
    )  # a product of whole heads and two short sums take less than four short products
    rotated: Tensor = _Rotation.apply(heads, *(table.to(heads.dtype).view(shape) for table in (factors, sin)))
    return rotated


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, factors: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(factors, sin)
        return _turned(heads, factors, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        factors, sin = ctx.saved_tensors
        return _turned(gradient, factors, -sin), None, None


def _turned(heads: Tensor, factors: Tensor, sin: Tensor) -> Tensor:
    half = sin.shape[-1]
    turned = heads * factors
    turned[..., :half].addcmul_(heads[..., half : 2 * half], sin, value=-1)
    turned[..., half : 2 * half].addcmul_(heads[..., :half], sin)
    return turned
