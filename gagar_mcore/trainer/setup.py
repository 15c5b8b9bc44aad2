"""A model with its data-parallel wrapper and its optimizer. Imported after `rank.start_rank`."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from gagar_mcore.config.learning import OptimizerSection, TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.megatron import Parallelism, build_model, transformer_config


@dataclass(frozen=True, slots=True)
class Policy:
    """One rank's part of the model under training. gpt: the bare model; ddp: gpt with its gradient buffers."""

    model: ModelConfig
    gpt: Any
    ddp: Any
    optimizer: Any


def build_policy(model: ModelConfig, trainer: TrainerSection, router_bias_update_rate: float = 0.0) -> Policy:
    """Weights are not yet set. `freeze_router` keeps router weights and selection bias as they are loaded."""
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
