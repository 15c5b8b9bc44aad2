"""Recipe sections of stage a: tasks, sandbox, engine, rollout, verification."""

from typing import Annotated, Literal

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.devices import Device

MOST = 10**9  # that a recipe counts to, so that sums and clocks stay in range

Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Seconds = Annotated[float, Field(gt=0, le=MOST)]


class TasksSection(Section):
    """Where tasks come from. `generated`: bug-repair tasks made from `seed`; `harbor`: task directories below `path`."""

    source: Literal["generated", "harbor"] = "generated"
    path: str | None = None
    count: Positive = 256
    seed: int = 1
    heldout_count: Count = 64
    heldout_seed: int = 90001


class SandboxSection(Section):
    """Limits of every sandbox. `concurrency` bounds how many sessions hold one at once (None: all that run)."""

    backend: Literal["local"] = "local"
    memory_mb: Positive = 512
    processes: Positive = 64
    file_size_mb: Positive = 16
    disk_mb: Positive = 64
    command_timeout_s: Seconds = 10.0
    concurrency: Positive | None = None


class EngineSection(Section):
    """The engine that samples the policy, in fp32. `max_batch` rows share one decode step; `deadline_s` bounds one call.
    `device: cuda`: on this machine's first GPU, which it leaves to the trainer while that is at work on a step."""

    kind: Literal["embedded"] = "embedded"
    device: Device = "cpu"
    max_batch: Positive = 128
    threads: Positive = 2
    deadline_s: Seconds = 120.0
    start_timeout_s: Seconds = 120.0


class RolloutSection(Section):
    """One step collects `groups_per_step` groups of `group_size` trajectories with mixed outcomes; at most
    `oversample * groups_per_step` groups are sampled for it. A session that does not finish by itself scores 0 unless
    `submit_unfinished`. While sandboxes or the engine are out, a group is tried again for `outage_wait_s`. In deterministic runs
    the deadline must be out of reach: it is wall time."""

    groups_per_step: Positive = 16
    group_size: Annotated[Positive, Field(ge=2)] = 8
    oversample: Annotated[float, Field(ge=1, le=MOST)] = 2.0
    max_turns: Positive = 7
    max_new_tokens: Positive = 32
    max_context: Positive = 500
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    tools: Literal["compact", "bash"] = "compact"
    submit_unfinished: bool = False
    session_deadline_s: Seconds = 300.0
    outage_wait_s: Seconds = 600.0
    concurrent_groups: Positive = 16


class VerifySection(Section):
    """`reuse_identical`: within one group, equal patches are tested once. `concurrency`: test runs at once (None: 4 a core)."""

    timeout_s: Seconds = 30.0
    reuse_identical: bool = True
    concurrency: Positive | None = None
