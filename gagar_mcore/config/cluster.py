"""Recipe section of the machines that the trainer runs on."""

from typing import Literal

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import Positive

GpuName = Literal["h100", "h200", "b200"]


class ClusterSection(Section):
    """`gpu` is what each rank has to itself; None: whatever this machine has. `node_memory_gb` is that of the hosts, each with
    eight of them; None: 2 TB."""

    gpu: GpuName | None = None
    node_memory_gb: Positive | None = None
