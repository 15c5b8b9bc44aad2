"""Dynamic sampling: groups are sampled until the step has its number of mixed ones, within a bound."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gagar_mcore.rollout.carry import Carry
from gagar_mcore.rollout.group import FinishedGroup, GroupPipeline
from gagar_mcore.rollout.history import History, TaskOutcome
from gagar_mcore.rollout.scheduler import Ended, Progress, Scheduler, Take
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw, Position, TaskMix


class CollectionError(RuntimeError):
    """A step found no usable group within its bound; the message counts the reasons."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Every group that ended in a step, in the order of their draws. `next_position` is the data position after all that it drew;
    `outcomes` is what the step teaches of its tasks."""

    step: int
    groups: list[FinishedGroup]
    next_position: Position
    outcomes: list[TaskOutcome] = field(default_factory=list)

    @property
    def kept(self) -> list[FinishedGroup]:
        return [g for g in self.groups if g.kept]

    def dropped(self) -> Counter[str]:
        return Counter(str(g.dropped) for g in self.groups if not g.kept)


async def collect(
    scheduler: Scheduler,
    pipeline: GroupPipeline,
    mix: TaskMix,
    history: History,
    step: int,
    position: Position,
    wanted: int,
    most: int,
    take: Take[FinishedGroup],
    carry: Carry[FinishedGroup] | None = None,
    progress: Progress = lambda kept, dropped: None,
) -> Collection:
    """Sample groups from data position `position` until `wanted` are kept or `most` were tried; see `Scheduler.step`. `take`
    leaves of each group no more than the step must remember. Raises CollectionError where not one group was kept."""
    after = position

    async def run(draw: Draw, rank: Rank) -> FinishedGroup:
        return await pipeline.run(draw.step, draw.index, draw.task, rank)

    def draws() -> Iterator[Draw]:
        nonlocal after
        for draw in mix.draws(position, history.forecast):
            after = draw.after
            yield replace(draw, step=step)

    ended = await scheduler.step(run, draws(), wanted, most, progress, take, carry)
    collection = Collection(step, [e.result for e in ended], after, [_outcome(e) for e in ended])
    if not collection.kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(collection.dropped().items())) or "no task is left to try"
        mend = "raise rollout.oversample and go on with gagar train --resume, or end the run here"
        raise CollectionError(f"step {step}: none of {len(ended)} groups had mixed outcomes ({reasons}); {mend}")
    return collection


def _outcome(ended: Ended[FinishedGroup]) -> TaskOutcome:
    valid = [sample for sample in ended.result.samples if sample.valid]
    return TaskOutcome(
        task=ended.draw.task.key,
        passed=sum(sample.passed for sample in valid),
        valid=len(valid),
        length=max((sample.generated for sample in valid), default=0),
        failures=ended.failures,
    )
