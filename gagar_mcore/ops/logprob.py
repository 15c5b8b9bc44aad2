"""Log-probabilities and entropies under a linear output layer whose logits never exist as a whole."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from gagar_mcore.ops.logprob_blocks import (
    Blocks,
    block_gradient,
    block_terms,
    kept_gradient,
    merge_terms,
    no_terms,
    plan_blocks,
    row_factors,
)

CPU_CHUNK = 64 << 20  # larger blocks go back to the system each time, and come with a page fault for every page
GPU_CHUNK = 256 << 20
DTYPES = (torch.bfloat16, torch.float32, torch.float64)
Entropy = Literal["none", "detached", "differentiable"]


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    group: dist.ProcessGroup | None = None,
    entropy: Entropy = "none",
    reduce_hidden_grad: bool = True,
    chunk_bytes: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at `targets`, and the entropy of that distribution.

    hidden `[N, H]`, weight `[V / TP, H]` of one dtype (bfloat16, float32 or float64), targets `[N]` int64.
    Returns log-probs `[N]` and, where `entropy` asks for it, entropies `[N]` in nats, both float32 (float64 for float64
    inputs). Sums and accumulated products are float32, gradients come in their inputs' dtype. "detached" entropy has no
    gradient and keeps nothing for a backward pass. The same inputs on the same machine give the same bits.

    Vocabulary-parallel over `group`: its rank r holds the rows of `weight` from r V / TP on, and all ranks pass the same
    `hidden` and `targets`. The gradient of `hidden` is summed over the group, unless `reduce_hidden_grad` is false: then
    each rank gets its own part of the sum, for a caller whose backward pass adds the parts up, as the gather of Megatron's
    sequence parallelism does. One all-gather forward, at most one all-reduce backward.

    Memory: logits are computed in blocks, forward and again backward, in at most `chunk_bytes` of scratch (by default
    `GPU_CHUNK` or `CPU_CHUNK`). Where one block holds them all and entropy is not differentiable, it is kept from forward to
    backward, in at most a third of that. Beside that live the inputs, the gradients asked for (the weight's also in float32 where
    it is of a smaller dtype) and, per token, 64 + 48 TP bytes. Nothing grows with V N.

    Raises ValueError for shapes, dtypes or devices that do not fit together, outside `group`, and for targets outside
    [0, V); on CUDA, where looking would wait for the device, such a target's log-prob is NaN.
    """
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK if hidden.device.type == "cpu" else GPU_CHUNK
    shard = _Shard(temperature, group, entropy, reduce_hidden_grad, chunk_bytes)
    _check_tensors(hidden, weight, targets)
    _check_options(shard)
    logprobs, entropies = _LinearLogprobs.apply(hidden, weight, targets, shard)
    return logprobs, entropies


@dataclass(frozen=True, slots=True)
class _Shard:
    temperature: float
    group: dist.ProcessGroup | None
    entropy: Entropy
    reduce_hidden_grad: bool
    chunk_bytes: int

    @property
    def size(self) -> int:
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    def blocks(self, hidden: Tensor, weight: Tensor) -> Blocks:
        return plan_blocks(len(hidden), len(weight), weight.shape[1], self.chunk_bytes, _precision(hidden).itemsize)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, shard: _Shard) -> tuple[Tensor, Tensor | None]:
        local_targets = targets - shard.rank * len(weight)
        own_terms, weights = _shard_terms(hidden, weight, local_targets, shard)
        terms = _over_group(own_terms, len(weight), shard)
        if not targets.is_cuda:  # after the ranks have met: a rank that stops before leaves the others waiting
            _check_range(targets, len(weight) * shard.size)
        ctx.shard = shard
        kept = (None, None) if weights is None else (weights, (own_terms[0] - terms[0]).exp())
        ctx.save_for_backward(hidden, weight, local_targets, terms, *kept)
        ctx.set_materialize_grads(False)
        maximum, total, target, moment = terms
        log_total = total.log()
        in_range = (targets >= 0) & (targets < len(weight) * shard.size)
        logprobs = torch.where(in_range, target - maximum - log_total, torch.nan)
        if shard.entropy == "none":
            return logprobs, None
        entropy = log_total - moment / total
        if shard.entropy == "detached":
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, terms, weights, shift = ctx.saved_tensors
        shard: _Shard = ctx.shard
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        precision = _precision(hidden)
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=precision) if wants_weight else None
        factors = row_factors(terms, _over(grad_logprobs, shard.temperature), _over(grad_entropy, shard.temperature))
        blocks = shard.blocks(hidden, weight)
        for rows in blocks.over_tokens():
            part = _operand(hidden[rows])
            grad_part = torch.zeros_like(part, dtype=precision)
            for columns in blocks.over_vocabulary():
                block_weight = _operand(weight[columns])
                in_block = targets[rows] - columns.start
                if weights is not None:
                    gradient = kept_gradient(weights, shift, in_block, factors)
                else:
                    logits = _logits(part, block_weight, shard.temperature)
                    gradient = block_gradient(logits, in_block, factors[:, rows], grad_entropy is not None)
                gradient = gradient.to(part.dtype)
                if wants_hidden:
                    _add_product(grad_part, gradient, block_weight)
                if grad_weight is not None:
                    _add_product(grad_weight[columns], gradient.T, part)
            if grad_hidden is not None:
                grad_hidden[rows] = grad_part
        if grad_hidden is not None and shard.reduce_hidden_grad and shard.size > 1 and len(hidden):
            dist.all_reduce(grad_hidden, group=shard.group)
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None


def _shard_terms(hidden: Tensor, weight: Tensor, targets: Tensor, shard: _Shard) -> tuple[Tensor, Tensor | None]:
    """Terms `[4, N]` of this rank's part of the vocabulary, and what a backward pass may keep, see `block_terms`."""
    blocks = shard.blocks(hidden, weight)
    terms = no_terms(len(hidden), _precision(hidden), hidden.device)
    weights = None
    for rows in blocks.over_tokens():
        part = _operand(hidden[rows])
        for columns in blocks.over_vocabulary():
            logits = _logits(part, _operand(weight[columns]), shard.temperature)
            block, weights = block_terms(logits, targets[rows] - columns.start, shard.entropy != "none")
            terms[:, rows] = merge_terms(torch.stack([terms[:, rows], block]))
    return terms, weights if blocks.single and shard.entropy != "differentiable" else None


def _over_group(terms: Tensor, vocabulary: int, shard: _Shard) -> Tensor:
    """Merged in the order of ranks, the same bits on each. Ranks that do not hold as much `vocabulary` as this one are refused
    on the CPU, and make NaN on a GPU."""
    if shard.size == 1 or terms.shape[1] == 0:
        return terms
    sent = torch.cat([terms, terms.new_full((len(terms), 1), vocabulary)], dim=1)
    gathered = sent.new_empty(shard.size, *sent.shape)
    dist.all_gather_into_tensor(gathered.view(-1, sent.shape[1]), sent, group=shard.group)
    shares = gathered[:, 0, -1]
    equal = (shares == vocabulary).all()
    if not terms.is_cuda and not equal:
        raise ValueError(f"weight: ranks hold {shares.int().tolist()} rows of the vocabulary, and must hold equally many")
    return torch.where(equal, merge_terms(gathered[..., :-1]), torch.nan)


def _precision(tensor: Tensor) -> torch.dtype:
    """That of sums and of accumulated products."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _operand(tensor: Tensor) -> Tensor:
    """As a product takes it: CUDA multiplies small types with a float32 accumulator, the CPU would round the result."""
    return tensor if tensor.is_cuda else tensor.to(_precision(tensor))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = hidden @ weight.T if hidden.dtype == _precision(hidden) else _mixed_product(hidden, weight.T)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _over(gradient: Tensor | None, temperature: float) -> Tensor | None:
    return None if gradient is None else gradient / temperature


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    if right.dtype == into.dtype:
        into.addmm_(left, right)
    else:
        into.add_(_mixed_product(left, right))


def _mixed_product(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right, out_dtype=torch.float32)


def _check_tensors(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or not len(weight):
        raise ValueError(f"hidden must be [N, H] and weight [V / TP, H], not {[*hidden.shape]} and {[*weight.shape]}")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets must be [{len(hidden)}], one for each row of hidden, not {[*targets.shape]}")
    if hidden.dtype != weight.dtype or hidden.dtype not in DTYPES:
        raise ValueError(f"hidden and weight must both be one of {DTYPES}, not {hidden.dtype} and {weight.dtype}")
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64, not {targets.dtype}")
    if not hidden.device == weight.device == targets.device:
        raise ValueError(f"hidden, weight and targets lie on {hidden.device}, {weight.device} and {targets.device}")


def _check_options(shard: _Shard) -> None:
    if not (math.isfinite(shard.temperature) and shard.temperature > 0):
        raise ValueError(f"temperature must be positive and finite, not {shard.temperature}")
    if shard.entropy not in ("none", "detached", "differentiable"):
        raise ValueError(f'entropy must be "none", "detached" or "differentiable", not {shard.entropy!r}')
    if shard.rank < 0:
        raise ValueError("this process is not a member of the group that the vocabulary is split over")


def _check_range(targets: Tensor, vocabulary: int) -> None:
    outside = ((targets < 0) | (targets >= vocabulary)).nonzero()
    if len(outside):
        position = int(outside[0])
        raise ValueError(f"targets[{position}] is {int(targets[position])}, outside a vocabulary of {vocabulary}")
