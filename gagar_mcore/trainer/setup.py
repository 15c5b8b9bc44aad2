"""From a started process to a model, its data-parallel wrapper and its optimizer."""

import logging
import math
import os
import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gagar_mcore.config.learning import OptimizerSection, TrainerSection
from gagar_mcore.models.mimo_v2 import MimoV2Config


@dataclass(frozen=True, slots=True)
class Policy:
    """One rank's part of the model under training. gpt: the bare model; ddp: gpt with its gradient buffers."""

    model: MimoV2Config
    gpt: Any
    ddp: Any
    optimizer: Any


def start_rank(trainer: TrainerSection) -> None:
    """Join the process group that torchrun describes and build Megatron's groups in it. A collective waits at most
    `step_timeout_s`, then the rank fails."""
    warnings.filterwarnings("ignore")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    torch.set_num_threads(trainer.threads)
    from gagar_mcore.trainer import cpu, repairs

    cpu.enable()
    repairs.apply()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=trainer.step_timeout_s))
    if dist.get_world_size() != trainer.world_size:
        raise ValueError(f"trainer: the layout needs {trainer.world_size} ranks, {dist.get_world_size()} were started")
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=trainer.tp,
        expert_model_parallel_size=trainer.ep,
        expert_tensor_parallel_size=1,
        distributed_timeout_minutes=math.ceil(trainer.step_timeout_s / 60),
    )


def build_policy(model: MimoV2Config, trainer: TrainerSection, router_bias_update_rate: float = 0.0) -> Policy:
    """Weights are not yet set. `freeze_router` keeps router weights and selection bias as they are loaded."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from gagar_mcore.models.mimo_v2_megatron import Parallelism, build_model, transformer_config

    model_parallel_cuda_manual_seed(0)  # nothing draws from it (no dropout, no random initialisation), but it must exist
    bias_rate = 0.0 if trainer.freeze_router else router_bias_update_rate
    config = transformer_config(model, Parallelism(trainer.tp, trainer.ep), bias_rate)
    gpt = build_model(model, config)
    if torch.cuda.is_available():
        gpt.cuda()
    if trainer.freeze_router:
        for name, parameter in gpt.named_parameters():
            parameter.requires_grad = not name.endswith("router.weight")
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), gpt)

    def finalize(chunks: list[Any], num_tokens: Any = None, **kwargs: Any) -> None:
        finalize_model_grads(chunks, None, **kwargs)  # losses are sums already normalised by the batch's weights

    config.finalize_model_grads_func = finalize
    optimizer = build_optimizer(ddp, trainer.optimizer)
    config.grad_scale_func = optimizer.scale_loss
    return Policy(model, gpt, ddp, optimizer)


def build_optimizer(ddp: Any, section: OptimizerSection) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer="adam",
        lr=section.lr,
        weight_decay=section.weight_decay,
        adam_beta1=section.beta1,
        adam_beta2=section.beta2,
        adam_eps=section.eps,
        clip_grad=section.clip_grad or math.inf,  # without a bound the norm is still measured
        params_dtype=torch.float32,
        use_distributed_optimizer=True,
    )
    return get_megatron_optimizer(config, [ddp])
