"""What SGLang 0.5.23 lacks on a machine without a GPU, so that its real server runs there on small models.

SGLang's wheels bring CUDA kernels alone and assume that they load. `install` puts in their place what a CPU needs: names that
import and refuse to be called (`kernels`), attention with sinks and sliding windows in plain PyTorch (`attention`), and host
memory that is not pinned. No wheel holds a real part that could stand here instead. Scheduler, cache, batching, sampling, HTTP
and weight updates are SGLang's own."""

import os

FLAG = "SGLANG_USE_CPU_ENGINE"  # SGLang's own


def wanted() -> bool:
    return os.environ.get(FLAG) == "1"


def install() -> None:
    """Before anything of SGLang is imported, in each of its processes. Raises RuntimeError where torch sees a GPU."""
    import torch

    if torch.cuda.is_available():
        raise RuntimeError(
            "the stand-ins for SGLang's kernels are for machines without a GPU; hide it or serve with device: cuda"
        )
    from gagar_mcore.engine.sglang_cpu import kernels

    kernels.install()
    from gagar_mcore.engine.sglang_cpu import attention, host_memory

    attention.install()
    host_memory.install()
