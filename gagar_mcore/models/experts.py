"""Megatron's own experts, with one node of the graph for a linear layer of all of them together."""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.experts import SequentialMLP
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu


class Experts(SequentialMLP):
    """Gated feed-forward networks. Parameters and checkpoints are those of `SequentialMLP`; where tensor parallel, the dispatcher
    communicates, not the linear layers."""

    def forward(self, hidden: Tensor, tokens_per_expert: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        """hidden `[T, hidden]` in the order of the experts, probs `[T]`; returns `[T, hidden]`, and no bias."""
        counts = tokens_per_expert.tolist()
        halves = _linear(hidden, counts, [expert.linear_fc1.weight for expert in self.local_experts])
        inner: Tensor = _Gate.apply(halves, probs)
        return _linear(inner.to(hidden.dtype), counts, [expert.linear_fc2.weight for expert in self.local_experts]), None


def keep_order(model: torch.nn.Module) -> None:
    """Megatron sorts tokens by expert once more after ranks have exchanged them. A rank alone has them in that order."""
    for module in model.modules():
        dispatcher = getattr(module, "token_dispatcher", None)
        if dispatcher is not None and dispatcher.ep_size * dispatcher.tp_size == 1:
            dispatcher.num_local_experts = 1  # one run of tokens, which needs no sorting


def _linear(rows: Tensor, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """rows `[T, in]`, `counts[e]` of them for `weights[e]` `[out, in]`; returns `[T, out]`."""
    output: Tensor = _Linear.apply(rows, counts, *weights)
    return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], *weights: Tensor) -> Tensor:
        ctx.counts = counts
        ctx.save_for_backward(rows, *weights)
        output = rows.new_empty(len(rows), len(weights[0]))
        for weight, part, into in zip(weights, rows.split(counts), output.split(counts), strict=True):
            torch.mm(part, weight.T, out=into)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        gradients = gradient.split(ctx.counts)
        grad_rows = torch.empty_like(rows)
        for weight, part, into in zip(weights, gradients, grad_rows.split(ctx.counts), strict=True):
            torch.mm(part, weight, out=into)
        needed = zip(ctx.needs_input_grad[2:], gradients, rows.split(ctx.counts), strict=True)
        return grad_rows, None, *(part.T @ inputs if asked else None for asked, part, inputs in needed)


class _Gate(torch.autograd.Function):
    """halves `[T, 2 F]`, gate and up, probs `[T]` -> silu(gate) * up * probs `[T, F]`; keeps its inputs alone."""

    @staticmethod
    def forward(ctx: Any, halves: Tensor, probs: Tensor) -> Tensor:
        ctx.save_for_backward(halves, probs)
        gate, up = halves.chunk(2, dim=1)
        return silu(gate).mul_(up) * probs[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        halves, probs = ctx.saved_tensors
        gate, up = halves.chunk(2, dim=1)
        open_, onto = silu(gate), gradient * probs[:, None]
        grad_probs = (gradient * up).mul_(open_).sum(1, dtype=probs.dtype)
        grad_halves = torch.empty_like(halves)
        grad_gate, grad_up = grad_halves.chunk(2, dim=1)
        torch.mul(onto, open_, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(onto.mul_(up).to(gate.dtype), gate, grad_input=grad_gate)
        return grad_halves, grad_probs
