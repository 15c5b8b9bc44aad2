"""Dynamic sampling: groups are sampled until the step has its number of mixed ones, within a bound."""

from collections import Counter
from dataclasses import dataclass, field

from gagar_mcore.rollout.group import FinishedGroup, GroupPipeline
from gagar_mcore.rollout.history import History, TaskOutcome
from gagar_mcore.rollout.scheduler import Ended, Progress, Scheduler
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw, Position, TaskMix


class CollectionError(RuntimeError):
    """A step found no usable group within its bound; the message counts the reasons."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Every group that a step sampled, in the order of their draws. `next_position` is the data position after it; `outcomes` is
    what the step teaches of its tasks."""

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
    progress: Progress = lambda kept, dropped: None,
) -> Collection:
    """Sample groups from data position `position` until `wanted` are kept or `most` were tried; see `Scheduler.step`.
    Raises CollectionError where not one group was kept."""

    async def run(draw: Draw, rank: Rank) -> FinishedGroup:
        return await pipeline.run(step, draw.index, draw.task, rank)

    ended = await scheduler.step(run, mix.draws(position, history.forecast), wanted, most, progress)
    after = ended[-1].draw.after if ended else position
    collection = Collection(step, [e.result for e in ended], after, [_outcome(e) for e in ended])
    if not collection.kept:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(collection.dropped().items())) or "no task is left to try"
        mend = "raise rollout.oversample and resume, or end the run here"
        raise CollectionError(f"step {step}: none of {len(ended)} groups had mixed outcomes ({reasons}); {mend}")
    return collection


def _outcome(ended: Ended[FinishedGroup]) -> TaskOutcome:
    valid = [t for t in ended.result.trajectories if t.valid]
    return TaskOutcome(
        task=ended.draw.task.key,
        passed=sum(t.passed for t in valid),
        valid=len(valid),
        length=max((t.generated_tokens for t in valid), default=0),
        failures=ended.failures,
    )
