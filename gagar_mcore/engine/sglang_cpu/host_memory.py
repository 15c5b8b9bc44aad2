"""SGLang pins the buffer into which it copies routed experts, which only CUDA can do. Without a GPU nothing is copied, and the
buffer stays as it is."""

from sglang.srt.mem_cache.pool_host import common
from torch import Tensor


def _leave_unpinned(buffer: Tensor, registration_granularity_bytes: int | None = None) -> None:
    """In place of `cudaHostRegister`."""


def install() -> None:
    common._cuda_host_register = _leave_unpinned
