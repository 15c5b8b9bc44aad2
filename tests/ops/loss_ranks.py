"""A pool of ranks that compute one global batch in every cut: micro-batches, data-parallel and context-parallel ranks."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from gloo_pool import compute_on_ranks
from loss_cases import Case, random_case
from torch import Tensor

from gagar_mcore.credit import aggregation_weights
from gagar_mcore.ops import fused, reference
from gagar_mcore.ops.behaviour import advantage_sums, behaviour_of
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.library import library
from gagar_mcore.ops.spec import LossSpec
from gagar_mcore.ops.stats import PolicyStats

RANKS = 8
SEED = 1
LENGTHS = (6, 21, 1, 0, 4, 33, 5, 2, 17, 9, 3)
PROMPTS = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3)


@dataclass(frozen=True)
class Variant:
    """A loss with its extras; the bounds are such that they bite on both sides."""

    spec: LossSpec
    aggregation: str
    old: bool = False
    ref: bool = False
    shaped: bool = False


@dataclass(frozen=True)
class Cut:
    microbatches: int
    dp: int
    cp: int
    order: str
    mixed: bool = False  # every second rank has no compiled library


@dataclass(frozen=True)
class Whole:
    """What a cut gives, put together again. gradient `[T]` belongs to the tokens of the global batch."""

    gradient: Tensor
    stats: PolicyStats
    behaviour: Tensor


ONE = Cut(1, 1, 1, "zigzag")
CUTS = [Cut(m, dp, cp, "zigzag") for m, dp, cp in product((1, 2, 5), (1, 2), (1, 2, 4))]
CUTS += [Cut(2, dp, cp, "contiguous") for dp, cp in product((1, 2), (2, 4))]
CUTS += [Cut(2, 1, cp, "zigzag", mixed=True) for cp in (2, 4)]
BOUNDS = {"mimo": (0.7, 1.4), "ppo": (0.8, 1.2), "gspo": (0.9, 1.1), "cispo": (0.6, 1.3)}
VARIANTS = [
    *(Variant(LossSpec(name, bounds, bounds, dual_clip=1.5), "token-mean") for name, bounds in BOUNDS.items()),
    *(Variant(LossSpec(name, bounds, bounds, dual_clip=1.5), "sequence-mean", shaped=True) for name, bounds in BOUNDS.items()),
    Variant(LossSpec("mimo", kl_coef=0.1), "prompt-mean", ref=True),
    *(
        Variant(LossSpec(name, tis_cap=1.1, kl_coef=0.1), "prompt-mean", old=True, ref=True, shaped=True)
        for name in ("ppo", "gspo", "cispo")
    ),
]


@cache
def global_case(aggregation: str) -> Case:
    case = random_case(LENGTHS, SEED).to(torch.float32)
    trained = [sum(int(case.flags[t]) & 1 for t in span[1:]) for span in case.spans()]
    weights = torch.tensor(aggregation_weights(trained, PROMPTS, aggregation), dtype=torch.float64)
    return Case(**{**{name: getattr(case, name) for name in case.__dataclass_fields__}, "weights": weights})


def compute_everything(target: Path) -> list[list[Whole]]:
    """`[variant][cut]`, through files below `target`."""
    library("cpu")  # compiled once, not by every rank
    return compute_on_ranks(RANKS, target, "gagar_mcore.ops.fused", everything_on_rank)


def everything_on_rank(_: int) -> list[list[Whole | None]]:
    groups = {size: consecutive_groups(size) for size in (1, 2, 4, 8)}
    return [[on_this_rank(variant, cut, groups) for cut in CUTS] for variant in VARIANTS]


def consecutive_groups(size: int) -> list[dist.ProcessGroup]:
    return [dist.new_group(range(first, first + size)) for first in range(0, RANKS, size)]


def on_this_rank(variant: Variant, cut: Cut, groups: dict[int, list[dist.ProcessGroup]]) -> Whole | None:
    """None on ranks that the cut leaves idle."""
    rank = dist.get_rank()
    if rank >= cut.dp * cut.cp:
        return None
    parts = [Part(variant, cut, rank, sequences) for sequences in sequences_of(cut, rank // cut.cp)]
    everyone = groups[cut.dp * cut.cp][0]
    behaviour = None
    if variant.shaped:
        sums = sum(part.advantage_sums() for part in parts)
        dist.all_reduce(sums, group=everyone)
        behaviour = behaviour_of(sums, kappa=2.0, low=0.5, high=2.0)
    gradient = torch.zeros(sum(LENGTHS))
    measured = [part.loss(behaviour, groups[cut.cp][rank // cut.cp], gradient) for part in parts]
    stats = reduce(PolicyStats.combine, measured)
    dist.all_reduce(stats.sums, group=everyone)
    dist.all_reduce(stats.maxima, dist.ReduceOp.MAX, group=everyone)
    dist.all_reduce(gradient, group=everyone)
    return Whole(gradient, stats, behaviour.scale if behaviour else torch.ones(2))


def sequences_of(cut: Cut, dp_rank: int) -> Iterable[list[int]]:
    """One list a micro-batch: every sequence in one of them, on one data-parallel rank."""
    bins = cut.microbatches * cut.dp
    return [list(range(first, len(LENGTHS), bins)) for first in range(dp_rank, bins, cut.dp)]


class Part:
    """One micro-batch on one rank, with filling behind its last sequence."""

    def __init__(self, variant: Variant, cut: Cut, rank: int, sequences: list[int]) -> None:
        whole = global_case(variant.aggregation)
        self.variant, self.case = variant, whole.select(sequences)
        self.implementation = reference if cut.mixed and rank % 2 else fused
        self.tokens = torch.tensor([t for s in sequences for t in whole.spans()[s]], dtype=torch.int64)
        place = {"cp_size": cut.cp, "cp_rank": rank % cut.cp, "order": cut.order}
        tight = TokenLayout.build(self.case.cu_seqlens, **place)
        self.layout = TokenLayout.build(self.case.cu_seqlens, **place, num_local=tight.num_local + 3)

    def advantage_sums(self) -> Tensor:
        return advantage_sums(self.implementation.sequence_counts(self.case.flags, self.layout), self.case.advantages)

    def loss(self, behaviour, cp_group: dist.ProcessGroup, gradient: Tensor) -> PolicyStats:
        """The part's statistics; adds the gradient of its tokens to `gradient`."""
        case, layout, variant = self.case, self.layout, self.variant
        leaf = case.local(case.logprobs, layout, fill=float("nan")).requires_grad_()
        loss, stats = self.implementation.policy_loss(
            leaf, case.rollout, case.flags, case.advantages, case.weights, layout, variant.spec,
            old_logprobs=case.local(case.old, layout) if variant.old else None,
            ref_logprobs=case.local(case.ref, layout) if variant.ref else None,
            behaviour=behaviour,
            cp_group=cp_group,
        )  # fmt: skip
        loss.backward()
        token = layout.predicted_tokens()
        gradient[self.tokens[token[token >= 0]]] += leaf.grad[token >= 0]
        return stats
