"""Cutting a step's sequences into micro-batches, the same on every rank."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
COARSENESS = 50  # thousands of micro-batches may be one part in so many more than are needed, to find their number soon


@dataclass(frozen=True, slots=True)
class Limits:
    """tokens: positions of a micro-batch on one rank. Each sequence is filled up to a multiple of 2 cp positions where cp > 1,
    and all of a micro-batch to a multiple of `tokens_multiple` on each rank, an even one where cp > 1. The number of
    micro-batches is a multiple of `multiple`."""

    tokens: int
    dp: int = 1
    cp: int = 1
    tokens_multiple: int = 1
    multiple: int = 1

    def padded(self, lengths: Ints) -> Ints:
        return lengths if self.cp == 1 else -(-lengths // (2 * self.cp)) * 2 * self.cp

    def filled(self, positions: Ints) -> Ints:
        """Positions that a micro-batch takes whose sequences take `positions`; one without sequences is filling alone."""
        multiple = math.lcm(self.tokens_multiple, 1 if self.cp == 1 else 2) * self.cp
        return -(-np.maximum(positions, 1) // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Packing:
    """microbatches: `[rank][micro-batch]`, the sequences that each data-parallel rank runs in each micro-batch.

    flop_imbalance: operations of the rank that has most, over those of the mean rank. lockstep_imbalance: likewise where every
    rank waits for the longest after each micro-batch, as in the exchange of tokens between experts.
    padding_share: positions that hold no token, of all that the ranks run."""

    microbatches: list[list[list[int]]]
    flop_imbalance: float
    lockstep_imbalance: float
    padding_share: float

    def metrics(self) -> dict[str, float]:
        return {
            "microbatches": float(len(self.microbatches[0])),
            "flop_imbalance": self.flop_imbalance,
            "lockstep_imbalance": self.lockstep_imbalance,
            "padding_share": self.padding_share,
        }


def plan_microbatches(lengths: Ints, flops: Floats, limits: Limits) -> Packing:
    """Balance `flops` `[S]` of sequences of `lengths` `[S]` tokens over ranks and micro-batches. No sequence is cut; one longer
    than a micro-batch is alone in it. Every rank gets the same number of micro-batches, some empty where there are too few.

    Sequences are dealt out from the longest to the shortest, so that those of a micro-batch, and micro-batches that run at the
    same time, are of like length, and a padded block wastes little."""
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    positions = limits.padded(lengths)[order]
    capacity = limits.tokens * limits.cp
    queue = _Queue(_running(np.minimum(positions, capacity)), _running(flops[order]))
    at_once, times, dealt = capacity * limits.dp * limits.multiple, 0, 0
    while dealt < len(queue) or not times:
        times += max(1, (queue.room[-1] - queue.room[dealt]) // at_once, times // COARSENESS)
        cuts, dealt = _deal(queue, capacity, limits.dp, times * limits.multiple)
    microbatches = [[order[first:last].tolist() for first, last in rank] for rank in cuts]
    filled = limits.filled(_between(_running(positions), cuts)).sum()
    return Packing(microbatches, *_imbalances(_between(queue.flops, cuts)), padding_share=float(1 - lengths.sum() / filled))


@dataclass(frozen=True, slots=True)
class _Queue:
    """Sequences in the order in which they are dealt. room: positions of the first i, for i from 0 to S, one longer than a
    micro-batch counted as long as one; flops: their operations."""

    room: list[int]
    flops: list[float]

    def __len__(self) -> int:
        return len(self.room) - 1

    def take(self, first: int, capacity: int, flops: float) -> int:
        """The end of the micro-batch that starts at `first`, has at most `capacity` positions, or one sequence, and comes as near
        to `flops` as whole sequences can; it may be empty."""
        target = self.flops[first] + flops
        end = bisect_right(self.flops, target, first) - 1
        if end < len(self) and self.flops[end + 1] - target < target - self.flops[end]:
            end += 1
        return min(end, max(first + 1, bisect_right(self.room, self.room[first] + capacity, first) - 1), len(self))


def _deal(queue: _Queue, capacity: int, dp: int, count: int) -> tuple[list[list[tuple[int, int]]], int]:
    """`[rank][micro-batch]`, first and last place in the order, and how many sequences that deals out.

    The operations left are spread evenly over the micro-batches left, and over ranks by what each lacks to its share of the
    step. A rank takes more in a micro-batch whose longest sequence keeps another busy for longer."""
    cuts: list[list[tuple[int, int]]] = [[] for _ in range(dp)]
    lacking = [queue.flops[-1] / dp] * dp
    first = 0
    for index in range(count):
        share = (queue.flops[-1] - queue.flops[first]) / (count - index) / max(sum(lacking), 1.0)
        longest = queue.flops[min(first + 1, len(queue))] - queue.flops[first]
        ranks = sorted(range(dp), key=lambda rank: (-lacking[rank], rank))
        for rank in ranks:
            last = queue.take(first, capacity, min(max(lacking[rank] * share, longest), lacking[rank]))
            if rank == ranks[0]:  # at least one, so that enough micro-batches hold all
                last = max(last, min(first + 1, len(queue)))
            cuts[rank].append((first, last))
            lacking[rank] = max(lacking[rank] - (queue.flops[last] - queue.flops[first]), 0.0)
            first = last
    return cuts, first


def _running(amounts: npt.NDArray[Any]) -> list[Any]:
    return [0, *np.cumsum(amounts).tolist()]


def _between(ends: list[Any], cuts: list[list[tuple[int, int]]]) -> npt.NDArray[Any]:
    """What lies in each micro-batch, `[rank, micro-batch]`."""
    return np.diff(np.array(ends)[np.array(cuts)])[..., 0]


def _imbalances(flops: Floats) -> tuple[float, float]:
    """Over the step and in lockstep; flops `[rank, micro-batch]`."""
    mean = max(flops.sum(1).mean(), 1.0)
    return float(flops.sum(1).max() / mean), float(flops.max(0).sum() / mean)
