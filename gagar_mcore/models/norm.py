"""Root mean square normalisation as one node of the graph."""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.autograd.function import once_differentiable


class RMSNorm(torch.nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, at least in float32 (Zhang and Sennrich 2019,
    arXiv 1910.07467).

    On a shard of the sequence it is right as long as the gradient of its weight is summed over tensor-parallel ranks, which
    Megatron does for parameters marked `sequence_parallel`."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010  (an attribute that Megatron reads)

    def forward(self, x: Tensor) -> Tensor:
        precision = torch.promote_types(x.dtype, torch.float32)
        normed: Tensor = _Normalise.apply(x.to(precision), self.weight.to(precision), self.eps)
        return normed.to(x.dtype)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return torch.mul(x, scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """With s the scale and n the width: dx = s g w - x s^3 (g x . w) / n, dw = sum of s g x over the rows."""
        x, weight, scale = ctx.saved_tensors
        products = (gradient * x).flatten(0, -2)
        grad_weight = scale.view(1, -1).mm(products).view(-1)
        shrinking = (products @ weight).view_as(scale).mul_(scale**3).div_(-x.shape[-1])
        return torch.mul(gradient, weight).mul_(scale).addcmul_(x, shrinking), grad_weight, None
