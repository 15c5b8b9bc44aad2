"""One block of logits at a time: what the log-prob and the entropy of a row need of it, and the gradient through it.

With z the logits of a row, m its maximum and d = z - m:

    S = sum exp(d)    log p(y) = d_y - log S    H = log S - sum(exp(d) d) / S

(m, S, z_y, sum(exp(d) d)) over a part of the vocabulary are the *terms* of that part; terms of disjoint parts merge exactly.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BUFFERS = 3  # blocks of each shape that live at once: values, a second function of them, a copy in another precision
UNDERFLOW = -1000.0  # exp is 0 here and below, and stays so when multiplied by this


@dataclass(frozen=True, slots=True)
class Blocks:
    """How `[tokens, vocabulary]` is cut: into blocks of at most `[rows, columns]`."""

    tokens: int
    vocabulary: int
    rows: int
    columns: int

    @property
    def single(self) -> bool:
        return self.rows >= self.tokens and self.columns == self.vocabulary

    def over_tokens(self) -> Iterator[slice]:
        return (slice(first, first + self.rows) for first in range(0, self.tokens, self.rows))

    def over_vocabulary(self) -> Iterator[slice]:
        return (slice(first, first + self.columns) for first in range(0, self.vocabulary, self.columns))


def plan_blocks(tokens: int, vocabulary: int, hidden_size: int, chunk_bytes: int, itemsize: int) -> Blocks:
    """The largest blocks, near to squares, for which `BUFFERS` times (logits `[rows, columns]`, hidden states
    `[rows, hidden_size]` and weights `[columns, hidden_size]`) of `itemsize` bytes fit into `chunk_bytes`. Raises ValueError
    where not even one logit does."""
    room = chunk_bytes // (BUFFERS * itemsize)
    if room < 1 + 2 * hidden_size:
        least = BUFFERS * itemsize * (1 + 2 * hidden_size)
        raise ValueError(f"chunk_bytes is {chunk_bytes}, but a hidden size of {hidden_size} needs at least {least}")

    def fitting(other: int) -> int:
        return (room - other * hidden_size) // (other + hidden_size)

    square = math.isqrt(hidden_size**2 + room) - hidden_size
    most = max(tokens, 1)
    columns = min(vocabulary, fitting(min(most, square)))
    return Blocks(tokens, vocabulary, min(most, fitting(columns)), columns)


def no_terms(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Terms `[4, rows]` of no columns at all."""
    terms = torch.zeros(4, rows, dtype=dtype, device=device)
    terms[0] = torch.finfo(dtype).min
    return terms


def block_terms(logits: Tensor, targets: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Terms `[4, rows]` of `logits [rows, columns]`, which are overwritten, and exp(d) `[rows, columns]` by their own maximum.
    targets `[rows]` count from the block's first column; one that lies elsewhere adds 0 to the target's logit. Without entropy
    the last term is 0."""
    column, held = _within(targets, logits.shape[1])
    target = torch.where(held, logits.gather(1, column)[:, 0], 0)
    maximum = logits.amax(1).clamp_(min=torch.finfo(logits.dtype).min)  # finite where all logits are -inf
    logits.sub_(maximum[:, None])
    if not with_entropy:
        weights = logits.exp_()
        total = weights.sum(1)
        return torch.stack([maximum, total, target, torch.zeros_like(total)]), weights
    weights = logits.clamp_(min=UNDERFLOW).exp()
    return torch.stack([maximum, weights.sum(1), target, logits.mul_(weights).sum(1)]), weights


def merge_terms(terms: Tensor) -> Tensor:
    """Terms `[4, rows]` of the union of parts; terms `[parts, 4, rows]`."""
    maxima, totals, targets, moments = terms.unbind(1)
    maximum = maxima.amax(0)
    shift = (maxima - maximum).clamp_(min=UNDERFLOW)
    scale = shift.exp()
    total, moment = (totals * scale).sum(0), ((moments + totals * shift) * scale).sum(0)
    return torch.stack([maximum, total, targets.sum(0), moment])


def row_factors(terms: Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None) -> Tensor:
    """What `block_gradient` needs of each row, `[4, rows]`: m, and a, b, c of

        dL/dz_j = exp(d_j) (a + b d_j) + c [j = y]    with a = -(g + h (H - log S)) / S, b = -h / S, c = g

    where g and h are the gradients of L with respect to the row's log-prob and entropy; terms are those of the whole row."""
    maximum, total, _, moment = terms
    onto_target = torch.zeros_like(total) if grad_logprobs is None else grad_logprobs.to(total.dtype)
    if grad_entropy is None:
        return torch.stack([maximum, -onto_target / total, torch.zeros_like(total), onto_target])
    per_weight = grad_entropy.to(total.dtype) / total
    return torch.stack([maximum, per_weight * moment / total - onto_target / total, -per_weight, onto_target])


def block_gradient(logits: Tensor, targets: Tensor, factors: Tensor, with_entropy: bool) -> Tensor:
    """dL/dz of a block; logits `[rows, columns]` are overwritten, targets as in `block_terms`."""
    maximum, constant, slope, _ = factors[:, :, None]
    logits.sub_(maximum)
    if with_entropy:
        weights = logits.clamp_(min=UNDERFLOW).exp()
        gradient = weights.mul_(logits.mul_(slope).add_(constant))
    else:
        gradient = logits.exp_().mul_(constant)
    return _add_onto_target(gradient, targets, factors)


def kept_gradient(weights: Tensor, shift: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
    """`block_gradient` without entropy of what `block_terms` made of the logits. shift `[rows]`: exp of their maximum less that
    of the whole row."""
    return _add_onto_target(weights * (shift * factors[1])[:, None], targets, factors)


def _add_onto_target(gradient: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
    column, held = _within(targets, gradient.shape[1])
    return gradient.scatter_(1, column, gradient.gather(1, column) + torch.where(held[:, None], factors[3, :, None], 0))


def _within(targets: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """A valid column for every row, `[rows, 1]`, and whether it is the target's, `[rows]`."""
    return targets.clamp(0, columns - 1)[:, None], (targets >= 0) & (targets < columns)
