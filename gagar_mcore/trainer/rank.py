"""From a started process to a rank of Megatron's process groups."""

import logging
import math
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.devices import Device, device_environment
from gagar_mcore.ops.library import library
from gagar_mcore.trainer import cpu


def start_rank(trainer: TrainerSection) -> None:
    """`prepare`, then `join`."""
    prepare(trainer.threads, trainer.device)
    join(trainer)


def prepare(threads: int, device: Device = "cpu") -> None:
    """Make Megatron run in this process. Call once, before anything imports it. Raises RuntimeError where there is no GPU for
    `device: cuda`."""
    os.environ.update(device_environment(device))
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("trainer.device: cuda, but torch sees no GPU here; gagar doctor says why")
    warnings.filterwarnings("ignore")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    torch.set_num_threads(threads)
    cpu.enable()

    from gagar_mcore.trainer import repairs  # Megatron is imported after cpu.enable only

    repairs.apply()


def join(trainer: TrainerSection) -> None:
    """Enter the process group that torchrun describes and build Megatron's groups in it. A collective waits at most
    `step_timeout_s`, then the rank fails. Raises ValueError where another number of ranks was started than the layout has."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=trainer.step_timeout_s))
    if dist.get_world_size() != trainer.world_size:
        raise ValueError(f"trainer: the layout needs {trainer.world_size} ranks, {dist.get_world_size()} were started")
    build_groups(trainer)
    compile_kernels("cuda" if on_gpu else "cpu")


def compile_kernels(device: Device) -> None:
    """One rank a machine compiles the fused step where it is not compiled yet, the others find it."""
    if os.environ["LOCAL_RANK"] == "0":
        library(device)
    dist.barrier()
    library(device)


def build_groups(trainer: TrainerSection) -> None:
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=trainer.tp,
        pipeline_model_parallel_size=trainer.pp,
        virtual_pipeline_model_parallel_size=trainer.vpp if trainer.vpp > 1 else None,
        context_parallel_size=trainer.cp,
        expert_model_parallel_size=trainer.ep,
        expert_tensor_parallel_size=trainer.etp,
        distributed_timeout_minutes=math.ceil(trainer.step_timeout_s / 60),
    )
