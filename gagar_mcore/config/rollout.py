"""Recipe sections of stage a: sandbox, engine, rollout, verification."""

import ipaddress
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gagar_mcore.config.base import Section
from gagar_mcore.devices import Device

MOST = 10**9  # that a recipe counts to, so that sums and clocks stay in range

Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Seconds = Annotated[float, Field(gt=0, le=MOST)]
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _private_address(host: str) -> str:
    try:
        address = ipaddress.IPv4Address(host)
        private = address.is_private and not address.is_unspecified
    except ValueError as error:
        raise ValueError(f"{host!r} is no IPv4 address; give one of this machine that no other network can reach") from error
    if not private:
        raise ValueError(f"{host} can be reached from other networks; give a private address of this machine")
    return host


class ServerSection(Section):
    """SGLang's server. `python` is the interpreter that has SGLang (None: this one), `port` 0 a free one. Layers are split over
    `tp` GPUs and experts over `ep` of them. `precision` None is fp32 on a CPU and bf16 on a GPU; `memory_share` is what weights
    and cache take of a GPU (None: as SGLang finds). `drafts` tokens a step are guessed by the model's layers of multi-token
    prediction. `update` is how new weights come, see docs/serving.md: read from the published directory (`disk`), through shared
    memory on this host (`tensor`), broadcast by the trainer (`distributed`), or as what changed in them (`delta`).
    `running` is what happens to requests at work when weights change: they `finish` first, `abort`, `retract` and
    read their context again with the new weights, or go on `in_place`. A server without a sign of health for `health_deadline_s`
    is dead. Of `count` servers on this machine each has so many GPUs, and a port of its own. `attach` names the file that `gagar
    serve policy` writes, several of them, or the directory where they lie: those servers are used, also ones that come later, and
    none is started. A server has at most `queue` requests waiting beside those at work. An answer that may have more than
    `parts_of` tokens comes in parts of so many, from the last of which another server goes on where one is lost; 0 is never."""

    attach: str | Annotated[list[str], Field(min_length=1)] | None = None
    count: Positive = 1
    queue: Count = 64
    parts_of: Count = 64
    python: str | None = None
    host: Annotated[str, AfterValidator(_private_address)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    tp: Positive = 1
    ep: Positive = 1
    precision: Literal["fp32", "bf16"] | None = None
    memory_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    drafts: Count = 0
    update: Literal["disk", "tensor", "distributed", "delta"] = "disk"
    running: Literal["finish", "abort", "retract", "in_place"] = "retract"
    health_deadline_s: Seconds = 30.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.running == "finish" and self.update in ("tensor", "distributed"):
            raise ValueError(f"running: finish lets requests in between the parts of update={self.update}; set running=retract")
        return self


class EngineSection(Section):
    """The engine that samples the policy: `embedded` in fp32, or SGLang's server. `max_batch` rows share one decode step, and
    `deadline_s` bounds one call. `device: cuda`: on this machine's GPUs, which it leaves to the trainer while that is at work."""

    kind: Literal["embedded", "sglang"] = "embedded"
    device: Device = "cpu"
    max_batch: Positive = 128
    threads: Positive = 2
    deadline_s: Seconds = 120.0
    start_timeout_s: Seconds = 120.0
    server: ServerSection = ServerSection()

    @property
    def update(self) -> Literal["disk", "tensor", "distributed", "delta"]:
        """How new weights come."""
        return self.server.update if self.kind == "sglang" else "disk"


class RolloutSection(Section):
    """One step collects `groups_per_step` groups of `group_size` trajectories with mixed outcomes; at most
    `oversample * groups_per_step` groups are sampled for it. A session that does not finish by itself scores 0 unless
    `submit_unfinished`. Where another turn does not fit into `max_context`, a session stops, or `overflow: compact` begins a new
    segment with what was done in short. While sandboxes or the engine are out, a group is tried again for `outage_wait_s`. In
    deterministic runs the deadline must be out of reach: it is wall time.

    `partial`: as many groups as may be are always at work, and a step leaves those that it does not need to the next, which go on
    with newer weights. Trajectories with tokens of weights that are more than `max_staleness` versions old are dropped."""

    groups_per_step: Positive = 16
    group_size: Annotated[Positive, Field(ge=2)] = 8
    oversample: Annotated[float, Field(ge=1, le=MOST)] = 2.0
    max_turns: Positive = 7
    max_new_tokens: Positive = 32
    max_context: Positive = 500
    overflow: Literal["stop", "compact"] = "stop"
    temperature: Temperature = 1.0
    tools: Literal["compact", "bash"] = "compact"
    submit_unfinished: bool = False
    session_deadline_s: Seconds = 300.0
    outage_wait_s: Seconds = 600.0
    concurrent_groups: Positive = 16
    partial: bool = False
    max_staleness: Count = 4


class VerifySection(Section):
    """`reuse_identical`: within one group, equal patches are tested once. `concurrency`: test runs at once (None: 4 a core)."""

    timeout_s: Seconds = 30.0
    reuse_identical: bool = True
    concurrency: Positive | None = None
