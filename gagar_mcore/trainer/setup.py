"""A model with its data-parallel wrapper and its optimizer. Imported after `rank.start_rank`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.backends import Backend, best_backend
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.megatron import Execution, Parallelism, build_model, transformer_config
from gagar_mcore.models.routing import ExpertReplay, replay_experts
from gagar_mcore.trainer.adam import StreamedAdamW
from gagar_mcore.trainer.layout import stage_layers


@dataclass(frozen=True, slots=True)
class Policy:
    """One rank's part of the model under training, one chunk or, where pipeline stages interleave, several, the last layers in
    the last one. chunks: the bare models; ddp: the same with their gradient buffers. mtp_weight: of the loss of multi-token
    prediction, 0 where it does not train. replays: of the layers whose routing is replayed."""

    model: ModelConfig
    chunks: tuple[Any, ...]
    ddp: tuple[Any, ...]
    optimizer: Any
    mtp_weight: float = 0.0
    replays: tuple[ExpertReplay, ...] = ()


def build_policy(
    model: ModelConfig, trainer: TrainerSection, router_bias_update_rate: float = 0.0, backend: Backend | None = None
) -> Policy:
    """Weights are not yet set. `freeze_router` keeps router weights and selection bias as they are loaded. backend: the best
    that can run here where it is None."""
    model_parallel_cuda_manual_seed(0)  # nothing draws from it (no dropout, no random initialisation), but it must exist
    bias_rate = 0.0 if trainer.freeze_router else router_bias_update_rate
    backend = backend or best_backend(trainer.cp)
    execution = Execution(trainer.precision, trainer.fp8, trainer.recompute, bias_rate)
    config = transformer_config(model, parallelism(trainer, model), execution, backend)
    chunks = tuple(build_chunk(model, config, backend, chunk, trainer) for chunk in range(trainer.vpp))
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, grad_reduce_in_fp32=trainer.gradient_dtype == "fp32"
    )
    ddp = tuple(DistributedDataParallel(config, ddp_config, chunk) for chunk in chunks)

    def finalize(chunks: list[Any], num_tokens: Any = None, **kwargs: Any) -> None:
        finalize_model_grads(chunks, None, **kwargs)  # losses are sums already normalised by the batch's weights

    config.finalize_model_grads_func = finalize
    optimizer = build_optimizer(ddp, trainer)
    config.grad_scale_func = optimizer.scale_loss
    mtp_weight = trainer.mtp_weight if trainer.mtp == "train" and model.mtp_layers else 0.0
    return Policy(model, chunks, ddp, optimizer, mtp_weight, replays(chunks, model) if trainer.routing == "replay" else ())


def parallelism(trainer: TrainerSection, model: ModelConfig) -> Parallelism:
    stages = stage_layers(model.num_layers, trainer.pp, trainer.vpp) if trainer.pp > 1 else ()
    return Parallelism(tp=trainer.tp, ep=trainer.ep, etp=trainer.etp, cp=trainer.cp, pp=trainer.pp, stages=stages)


def build_chunk(model: ModelConfig, config: Any, backend: Backend, chunk: int, trainer: TrainerSection) -> Any:
    gpt = to_precision(build_model(model, config, backend, chunk), config.params_dtype)
    if torch.cuda.is_available():
        gpt.cuda()
    for name, parameter in gpt.named_parameters():
        parameter.requires_grad = not is_frozen(name, trainer)
    return gpt


def is_frozen(name: str, trainer: TrainerSection) -> bool:
    if name.startswith("mtp."):
        return trainer.mtp == "frozen"
    return trainer.freeze_router and name.endswith("router.weight")


def replays(chunks: Sequence[Any], model: ModelConfig) -> tuple[ExpertReplay, ...]:
    return tuple(chain.from_iterable(replay_experts(chunk.decoder.layers, model.moe_layers) for chunk in chunks))


def to_precision(gpt: Any, dtype: torch.dtype) -> Any:
    """Parameters in `dtype`; buffers, among them the router's selection bias, stay in fp32."""
    for parameter in gpt.parameters():
        parameter.data = parameter.data.to(dtype)
    return gpt


def build_optimizer(ddp: Sequence[Any], trainer: TrainerSection) -> Any:
    section = trainer.optimizer
    config = OptimizerConfig(
        optimizer="adam",
        lr=section.lr,
        weight_decay=section.weight_decay,
        adam_beta1=section.beta1,
        adam_beta2=section.beta2,
        adam_eps=section.eps,
        clip_grad=section.clip_grad or math.inf,  # without a bound the norm is still measured
        bf16=trainer.precision == "bf16",
        params_dtype=torch.bfloat16 if trainer.precision == "bf16" else torch.float32,
        use_distributed_optimizer=True,
    )
    # Gradients stay in their buffers, master weights with the inner optimizer; Megatron's option for that allows only its own.
    config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
    optimizer = get_megatron_optimizer(config, list(ddp))
    moments = torch.bfloat16 if section.state_dtype == "bf16" else torch.float32
    for part in optimizer.chained_optimizers:
        part.optimizer = StreamedAdamW(part.optimizer.param_groups, moments, trainer.offload_optimizer)
    return optimizer
