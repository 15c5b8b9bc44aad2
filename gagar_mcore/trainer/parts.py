"""The micro-batches of a step: planned on every rank alike, each built when it is its turn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.flops import training_flops
from gagar_mcore.trainer.packing import Ints, Limits, Packing, plan_microbatches
from gagar_mcore.trainer.sequences import StepSequences, step_sequences

Part = TypeVar("Part")


class Parts(Sequence[Part]):
    """Micro-batches of one rank. Each is built anew whenever it is asked for, and not kept: as many are in memory as the caller
    holds. Several passes over the same parts see them in the same order; a slice is as lazy as the whole.

    groups: the sequences of each micro-batch; build: makes a micro-batch of them."""

    def __init__(self, groups: Sequence[Sequence[int]], build: Callable[[Sequence[int]], Part]) -> None:
        self.groups = groups
        self.build = build

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> Part: ...

    @overload
    def __getitem__(self, index: slice) -> "Parts[Part]": ...

    def __getitem__(self, index: int | slice) -> "Part | Parts[Part]":
        if isinstance(index, slice):
            return Parts(self.groups[index], self.build)
        return self.build(self.groups[index])

    def __iter__(self) -> Iterator[Part]:
        return map(self.build, self.groups)  # holds none of them while it builds the next, as a loop would


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Sequences of a step and their micro-batches on all ranks; mtp_depths: layers of multi-token prediction that train."""

    sequences: StepSequences
    packing: Packing
    mtp_depths: int = 0

    @property
    def num_tokens(self) -> int:
        """Those that are used."""
        return int(self.sequences.lengths.sum())

    def metrics(self) -> dict[str, float]:
        counts = {"tokens": float(self.num_tokens), "sequences": float(len(self.sequences.lengths))}
        return counts | self.packing.metrics() | self.sequences.metrics()


def plan_metrics(plans: Sequence[StepPlan]) -> dict[str, float]:
    """Of all mini-batches of a step: counts add up, of shares and imbalances the worst counts."""
    each = [plan.metrics() for plan in plans]
    return {
        name: max(metrics[name] for metrics in each)
        if name.endswith(("imbalance", "share"))
        else sum(metrics[name] for metrics in each)
        for name in each[0]
    }


def plan_step(cu_seqlens: Ints, trainer: TrainerSection, model: ModelConfig) -> StepPlan:
    """The same on every rank. Raises ValueError as `step_sequences` does."""
    sequences = step_sequences(cu_seqlens, trainer)
    flops = training_flops(model, sequences.lengths, trainer.recompute, trainer.mtp == "train")
    multiple = trainer.pp if trainer.vpp > 1 else 1
    limits = Limits(trainer.tokens_per_microbatch, trainer.dp, trainer.cp, trainer.tokens_multiple, multiple)
    packing = plan_microbatches(sequences.lengths, flops, limits)
    return StepPlan(sequences, packing, model.mtp_layers if trainer.mtp == "train" else 0)
