"""Recipe section of the simulated cluster of `gagar simulate`."""

from typing import Annotated

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import MOST, Positive

Spread = Annotated[float, Field(ge=0, le=10)]
Share = Annotated[float, Field(ge=0, le=1)]
Shape = Annotated[float, Field(gt=0, le=MOST)]


class SpreadSection(Section):
    """A log-normal quantity: its median, and the standard deviation of its logarithm."""

    median: Annotated[float, Field(gt=0, le=MOST)]
    spread: Spread = 0.0


class SimulateSection(Section):
    """`engines` servers with `engine_slots` requests at once each, `pods` for as many live sessions, `testers` for test runs and
    `graders` (None: `engine.max_batch`, the slots of the recipe's sessions, `verify.concurrency` or 64, `grading.concurrency`).

    Seconds: `turn` of the engine at work on a turn, `crowding` times as much longer where it is full; `command` of a tool call,
    `start` of a sandbox, `test`, `grade`, and `train` of the trainer's step. `turns` are those of a session; of their spread,
    tasks differ by `task_share` (as variance) and members of a group by the rest. Pass rates of tasks are Beta(`pass_alpha`,
    `pass_beta`); `fault` is the chance that a session is lost to the infrastructure."""

    engines: Positive = 1
    engine_slots: Positive | None = None
    pods: Positive | None = None
    testers: Positive | None = None
    graders: Positive | None = None
    turn: SpreadSection = SpreadSection(median=8.0, spread=0.8)
    crowding: Annotated[float, Field(ge=0, le=1000)] = 0.0
    command: SpreadSection = SpreadSection(median=0.5, spread=1.5)
    start: SpreadSection = SpreadSection(median=2.0, spread=0.5)
    test: SpreadSection = SpreadSection(median=30.0, spread=1.0)
    grade: SpreadSection = SpreadSection(median=120.0, spread=0.5)
    train: SpreadSection = SpreadSection(median=60.0)
    turns: SpreadSection = SpreadSection(median=20.0, spread=0.6)
    task_share: Share = 0.5
    pass_alpha: Shape = 0.8
    pass_beta: Shape = 0.8
    fault: Share = 0.01
