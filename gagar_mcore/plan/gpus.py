"""GPUs a plan can be made for: what their data sheets say, and what of it a plan counts on."""

from dataclasses import dataclass, replace

GPUS_PER_NODE = 8
USABLE_MEMORY = 0.9  # the rest: CUDA context, communication buffers, fragmentation of the allocator
USABLE_HOST_MEMORY = 0.8  # the rest: whatever else runs there
COMPUTE_EFFICIENCY = 0.4  # of the peak, in matrix products of this size
LINK_EFFICIENCY = 0.7  # of a link's rate, in collectives

PCIE_BYTES = 64e9  # a second to one GPU, PCIe 5.0 x16


@dataclass(frozen=True, slots=True)
class Gpu:
    """memory: bytes. flops, fp32_flops: operations a second, of dense products in bf16 and in fp32. nvlink, network: bytes a
    second that one GPU sends inside its node and to others. node_memory: bytes of its node's host."""

    name: str
    memory: float
    flops: float
    fp32_flops: float
    nvlink: float
    network: float
    node_memory: float = 2e12

    @property
    def usable_memory(self) -> float:
        return USABLE_MEMORY * self.memory

    @property
    def usable_node_memory(self) -> float:
        return USABLE_HOST_MEMORY * self.node_memory


# NVIDIA's data sheets: H100 SXM5, H200 SXM5, HGX B200. NVLink is stated for both directions together, half of it counts here;
# the network is one adapter of 400 Gb/s a GPU, and a node has 2 TB, as in DGX H100, H200 and B200 (docs.nvidia.com/dgx).
# B200: 180 GB of its 192 are usable.
GPUS = {
    "h100": Gpu("h100", 80e9, 989e12, 67e12, 450e9, 50e9),
    "h200": Gpu("h200", 141e9, 989e12, 67e12, 450e9, 50e9),
    "b200": Gpu("b200", 180e9, 2250e12, 80e12, 900e9, 50e9),
}


def node_gpus(ranks: int) -> int:
    """How many of the ranks share a node."""
    return min(ranks, GPUS_PER_NODE)


def find_gpu(name: str, node_memory_gb: int | None) -> Gpu:
    """node_memory_gb: of nodes that have other than usual memory."""
    return GPUS[name] if node_memory_gb is None else replace(GPUS[name], node_memory=node_memory_gb * 1e9)
