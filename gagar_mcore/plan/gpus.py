"""GPUs a plan can be made for: what their data sheets say, and what of it a plan counts on."""

from dataclasses import dataclass

GPUS_PER_NODE = 8
USABLE_MEMORY = 0.9  # the rest: CUDA context, communication buffers, fragmentation of the allocator
USABLE_HOST_MEMORY = 0.8 * 2e12  # of a node with 2 TB, as DGX H100 and H200 have
COMPUTE_EFFICIENCY = 0.4  # of the peak, in matrix products of this size
LINK_EFFICIENCY = 0.7  # of a link's rate, in collectives

PCIE_BYTES = 64e9  # a second to one GPU, PCIe 5.0 x16


@dataclass(frozen=True, slots=True)
class Gpu:
    """memory: bytes. flops: bf16 operations a second, dense. nvlink, network: bytes a second that one GPU sends inside its node
    and to others."""

    name: str
    memory: float
    flops: float
    nvlink: float
    network: float

    @property
    def usable_memory(self) -> float:
        return USABLE_MEMORY * self.memory


# NVIDIA's data sheets: H100 SXM5, H200 SXM5, HGX B200. NVLink is stated for both directions together, half of it counts here;
# the network is one adapter of 400 Gb/s a GPU, as in DGX systems. B200: 180 GB of its 192 are usable.
GPUS = {
    "h100": Gpu("h100", 80e9, 989e12, 450e9, 50e9),
    "h200": Gpu("h200", 141e9, 989e12, 450e9, 50e9),
    "b200": Gpu("b200", 180e9, 2250e12, 900e9, 50e9),
}
