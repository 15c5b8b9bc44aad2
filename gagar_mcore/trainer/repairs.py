"""Faults of Megatron-Core that show wherever Transformer Engine and Apex are absent, mended at the place where they are."""

import queue
from typing import Any

import torch


def apply() -> None:
    """Call once, before a model is built."""
    _define_missing_gemm()
    _allow_norm_under_sequence_parallelism()
    _restore_adam_step()
    _write_checkpoints_in_process()


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


def _restore_adam_step() -> None:
    """PyTorch's Adam keeps its step count in a tensor, which the distributed optimizer does not expect among the parameter's
    states when it loads, and shares between all parameters, so that it would advance once a parameter."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    set_states, load = DistributedOptimizer._set_main_param_and_optimizer_states, DistributedOptimizer.load_state_dict

    def set_states_with_step(self: Any, model_param: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        set_states(self, model_param, {"step": state["step"], **tensors} if "step" in state else tensors)

    def load_own_steps(self: Any, state_dict: dict[str, Any]) -> None:
        load(self, state_dict)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states_with_step
    DistributedOptimizer.load_state_dict = load_own_steps


def _write_checkpoints_in_process() -> None:
    """The checkpoint writer forks processes and starts a manager, which outlive a killed rank; here the rank writes by itself."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    def write(transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: queue.Queue[Any]) -> None:
        written: dict[int, list[Any]] = {}
        for index, bucket in enumerate(buckets):
            answers: queue.Queue[tuple[int, Any]] = queue.Queue()
            pending: queue.Queue[int] = queue.Queue()
            pending.put(index)
            FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, answers, pending, use_fsync=True)
            _, answer = answers.get_nowait()
            if isinstance(answer, Exception):
                raise answer
            written[index] = answer
        results.put(written)

    FileSystemWriterAsync.write_preloaded_data_multiproc = staticmethod(write)
    filesystem_async._get_write_results_queue = queue.Queue
