"""A pool of ranks that attend to packed sequences in context parallel, and what one rank gives for the whole sequences."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_pool import compute_on_ranks
from torch import Tensor

from gagar_mcore.models.packed import packed_attention, packed_sequences
from gagar_mcore.ops.layout import TokenLayout

RANKS = 4
HEADS, GROUPS, DIM, VALUE_DIM = 4, 2, 8, 6
WINDOWS = (None, 1, 2, 5, 16, 200)  # the last is longer than every sequence


@dataclass(frozen=True)
class Case:
    cp: int
    window: int | None
    with_sinks: bool
    seed: int


@dataclass(frozen=True)
class Inputs:
    """Of whole sequences; `probe` is the gradient of the output."""

    bounds: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    sinks: Tensor | None
    probe: Tensor


CASES = [Case(*case) for case in product((2, 4), WINDOWS, (False, True), range(2))]
BORDER_WINDOW, BORDER_CHUNK = 5, 8


def inputs(case: Case) -> Inputs:
    """Sequences from 1 token to several windows, of a length drawn anew for each seed, and one that is none."""
    generator = torch.Generator().manual_seed(case.seed)
    lengths = torch.cat([torch.tensor([1, 0, 2 * case.cp]), torch.randint(1, 90, (4,), generator=generator)])
    bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    total = int(bounds[-1])
    heads = draw(total, HEADS, DIM), draw(total, GROUPS, DIM), draw(total, GROUPS, VALUE_DIM)
    return Inputs(bounds, *heads, draw(HEADS) if case.with_sinks else None, draw(total, HEADS, VALUE_DIM))


def on_one_rank(case: Case) -> dict[str, Tensor]:
    """Output and gradients by name."""
    whole = inputs(case)
    tensors = [tensor.requires_grad_() for tensor in (whole.query, whole.key, whole.value, whole.sinks) if tensor is not None]
    return run(tensors, packed_sequences(whole.bounds), case, whole.probe)


def run(tensors: list[Tensor], packed, case: Case, probe: Tensor) -> dict[str, Tensor]:
    query, key, value, *sinks = tensors
    output = packed_attention(query, key, value, packed, case.window, sinks[0] if sinks else None)
    gradients = torch.autograd.grad((output * probe).sum(), tensors)
    return {"output": output.detach(), **dict(zip(("query", "key", "value", "sinks"), gradients, strict=False))}


def over_ranks(case: Case, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """The same from the parts of all ranks of `group`, put together again."""
    whole = inputs(case)
    layout = TokenLayout.build(whole.bounds, cp_size=case.cp, cp_rank=dist.get_rank(group))
    token = layout.tokens_after(0)
    real = token >= 0

    def cut(tensor: Tensor, fill: float) -> Tensor:
        return torch.where(real[:, None, None], tensor[token], fill)

    heads = [cut(tensor, 3.0).requires_grad_() for tensor in (whole.query, whole.key, whole.value)]
    sinks = [] if whole.sinks is None else [whole.sinks.requires_grad_()]
    part = run([*heads, *sinks], packed_sequences(layout.cu_local, group), case, cut(whole.probe, 0.0))
    totals = {}
    for name, tensor in part.items():
        total = tensor
        if name != "sinks":
            total = tensor.new_zeros(layout.num_tokens, *tensor.shape[1:])
            total[token[real]] = tensor[real]
        dist.all_reduce(total, group=group)
        totals[name] = total
    return totals


def seen_over_borders(cp: int, distance: int, group: dist.ProcessGroup) -> list[bool]:
    """Whether the first query of each chunk but the first sees the key `distance` places before, where it sees BORDER_WINDOW."""
    query, key, value = (torch.randn(2 * BORDER_CHUNK, *shape) for shape in ((HEADS, DIM), (GROUPS, DIM), (GROUPS, VALUE_DIM)))
    packed = packed_sequences(torch.tensor([0, 2 * BORDER_CHUNK]), group)
    before = packed_attention(query, key, value, packed, BORDER_WINDOW, None)
    seen = []
    for border in range(BORDER_CHUNK, 2 * cp * BORDER_CHUNK, BORDER_CHUNK):
        changed = key + (packed.positions == border - distance)[:, None, None]
        after = packed_attention(query, changed, value, packed, BORDER_WINDOW, None)
        differs = ((after != before).flatten(1).any(1) & (packed.positions == border)).any().int()
        dist.all_reduce(differs, op=dist.ReduceOp.MAX, group=group)
        seen.append(bool(differs))
    return seen


def compute_everything(target: Path) -> dict[Any, Any]:
    """What the ranks give: `over_ranks` by case, `seen_over_borders` by (cp, distance). Through a file below `target`."""
    return compute_on_ranks(RANKS, target, "gagar_mcore.models.packed", everything_on_rank)


def everything_on_rank(rank: int) -> dict[Any, Any]:
    pairs = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3))]
    groups = {2: pairs[rank // 2], 4: dist.group.WORLD}
    results: dict[Any, Any] = {case: over_ranks(case, groups[case.cp]) for case in CASES}
    for cp, distance in product((2, 4), (BORDER_WINDOW - 1, BORDER_WINDOW)):
        results[cp, distance] = seen_over_borders(cp, distance, groups[cp])
    return results
