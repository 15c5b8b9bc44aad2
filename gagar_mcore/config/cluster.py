"""Recipe section of the machines that the trainer runs on."""

from typing import Literal

from gagar_mcore.config.base import Section

GpuName = Literal["h100", "h200", "b200"]


class ClusterSection(Section):
    """`gpu` is what each rank has to itself; None: whatever this machine has."""

    gpu: GpuName | None = None
