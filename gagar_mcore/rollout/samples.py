"""What the numbers of a step need of each trajectory: all that stays in memory of one once it is in the batch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gagar_mcore.records.types import Trajectory
from gagar_mcore.tasks.question import Problem
from gagar_mcore.tasks.task import Task

Cleanliness = Callable[[Task, str], bool]


@dataclass(frozen=True, slots=True)
class Sample:
    """`patch`: whether its task asks for one; `clean`: whether it passed with a clean one; `surprise`: the sum of -log p over the
    generated tokens, in nats; `oldest`: the first of the weight versions that generated any (None: none did)."""

    source: str
    valid: bool
    stale: bool
    passed: bool
    reward: float
    patch: bool
    clean: bool
    turns: int
    segments: int
    malformed: int
    generated: int
    surprise: float
    oldest: int | None


def sample_of(problem: Problem, trajectory: Trajectory, is_clean: Cleanliness) -> Sample:
    return Sample(
        source=problem.source,
        valid=trajectory.valid,
        stale=trajectory.invalid_reason == "stale",
        passed=trajectory.passed,
        reward=trajectory.reward,
        patch=isinstance(problem, Task),
        clean=isinstance(problem, Task) and trajectory.passed and is_clean(problem, trajectory.patch),
        turns=len(trajectory.turns),
        segments=len(trajectory.segments),
        malformed=sum(not turn.ok for turn in trajectory.turns),
        generated=trajectory.generated_tokens,
        surprise=-float(np.asarray(trajectory.logprobs, np.float32).sum(dtype=np.float64)),
        oldest=min((span.version for span in trajectory.weight_spans), default=None),
    )
