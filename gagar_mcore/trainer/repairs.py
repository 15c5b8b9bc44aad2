"""Faults of Megatron-Core that show wherever Transformer Engine and Apex are absent, mended at the place where they are."""

from typing import Any

import torch


def apply() -> None:
    """Call once, before a model is built."""
    _define_missing_gemm()
    _allow_norm_under_sequence_parallelism()


def _define_missing_gemm() -> None:
    """The router reads a name that 0.16 binds only after Transformer Engine was imported."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def _allow_norm_under_sequence_parallelism() -> None:
    """PyTorch's norm is right on a shard of the sequence as long as its gradient is summed over tensor-parallel ranks, which
    Megatron does for parameters marked `sequence_parallel`."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    def new(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        norm = torch.nn.RMSNorm(hidden_size, eps=eps)
        setattr(norm.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010  (an attribute that Megatron reads)
        return norm

    WrappedTorchNorm.__new__ = new
