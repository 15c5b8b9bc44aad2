"""What a pool on a cluster is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What its pods are like. `init_image` is the image built from `sandbox/image`, `image` that of sandboxes whose spec names
    none. `user` runs everything inside; 0 is for images that need root, under a `runtime_class` that withstands it (None: the
    cluster's own). A pod is used again only where `read_only_root` leaves nothing but volumes to write to. `volumes`: what is
    written lies in memory, where the kernel holds it to the limit, or on the node's disk, where a pod that passes the limit is
    evicted. No pod outlives `lifetime_s`, whatever becomes of its pool."""

    namespace: str
    init_image: str
    image: str
    owner: str
    run: str
    runtime_class: str | None = "gvisor"
    user: int = 1000
    read_only_root: bool = True
    volumes: Literal["memory", "disk"] = "memory"
    cpu: str = "1"
    lifetime_s: int = 6 * 3600
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`concurrency`: the most pods, in use or not. For each kind of pod one is kept ready for eight in use, `spare` of them at
    most; one that nobody took for `idle_s` is deleted. A pod serves `uses` sandboxes (1: none is used again).

    A pod may take `start_s` to start, or less where it says why: `unschedulable_s` and `pull_s`. `acquire_s` bounds the wait for
    a sandbox, `retry_s` how long a request is sent again to an API server that refuses or is away, `execs` the requests into
    pods at once."""

    concurrency: int
    spare: int = 16
    idle_s: float = 60.0
    uses: int = 64
    start_s: float = 300.0
    unschedulable_s: float = 300.0
    pull_s: float = 120.0
    acquire_s: float = 1800.0
    retry_s: float = 120.0
    execs: int = 256

    def __post_init__(self) -> None:
        for name in ("concurrency", "uses", "execs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a pool needs at least 1")
