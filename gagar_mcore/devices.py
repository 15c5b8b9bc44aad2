"""What a child process computes on."""

from typing import Literal

Device = Literal["cpu", "cuda"]


def device_environment(device: Device) -> dict[str, str]:
    """A process for the CPU is shown no GPU: all that runs in it takes one wherever it sees one."""
    return {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
