"""Rotary position embedding of the first dimensions of each head."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rotary_table(positions: Tensor, theta: float, dim: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """For positions `[T]`, float32: cosines, twice, and a 1 for each dimension that is not turned, `[T, head_dim]`; sines
    `[T, dim / 2]`. So a product of whole heads and two short sums turn them, where there would be four short products."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    angles = positions[:, None].float() * (1.0 / theta**exponents)
    cos = angles.cos()
    return torch.cat([cos, cos, cos.new_ones(len(positions), head_dim - 2 * cos.shape[1])], dim=1), angles.sin()


def rotate(heads: Tensor, factors: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + dim / 2) of the first `dim` dimensions of `heads` `[T, ..., head_dim]`, and keep the others; factors
    and sin as from `rotary_table`."""
    shape = (len(sin), *[1] * (heads.dim() - 2), -1)
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
