"""Weights between a checkpoint's tensors and the shards of the model on each rank."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.weight_map import Rule, weight_rules
from gagar_mcore.weights.files import TensorReader


@torch.no_grad()
def load_tensors(gpt: torch.nn.Module, model: ModelConfig, read: TensorReader) -> None:
    """Set this rank's shard of every parameter. Raises ValueError where a tensor has another shape than the model."""
    local = local_tensors(gpt)
    for rule in weight_rules(model):
        name = _local_name(rule, model)
        if name is None:
            continue
        tensors = [read(tensor) for tensor in rule.tensors]
        shard = rule.form.split(tensors, 1)[0] if rule.expert is not None else rule.form.split(tensors, _tp_size())[_tp_rank()]
        if shard.shape != local[name].shape:
            raise ValueError(f"{rule.tensors[0]}: its shape does not fit the model of config.json")
        local.pop(name).copy_(shard)
    if local:
        raise RuntimeError(f"no weight rule for {sorted(local)}")


@torch.no_grad()
def gather_tensors(local: Mapping[str, Tensor], model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint, whole, on every rank, from the shards that `local_tensors` gives (or from anything of
    the same names and shapes, like gradients). A collective: all ranks iterate it to the end."""
    for rule in weight_rules(model):
        shards = _from_tensor_ranks(local[rule.parameter]) if rule.expert is None else [_from_expert_rank(local, rule, model)]
        yield from zip(rule.tensors, rule.form.merge(shards), strict=True)


def local_tensors(gpt: torch.nn.Module) -> dict[str, Tensor]:
    """This rank's shards by Megatron's names."""
    named = {**dict(gpt.named_parameters()), **dict(gpt.named_buffers())}
    return {name: tensor for name, tensor in named.items() if not name.endswith("local_tokens_per_expert")}


def _local_name(rule: Rule, model: ModelConfig) -> str | None:
    """None for an expert that lives on another rank."""
    if rule.expert is None:
        return rule.parameter
    rank, index = divmod(rule.expert, _experts_per_rank(model))
    return rule.parameter.format(index) if rank == parallel_state.get_expert_model_parallel_rank() else None


def _from_tensor_ranks(shard: Tensor) -> list[Tensor]:
    shards = [torch.empty_like(shard) for _ in range(_tp_size())]
    dist.all_gather(shards, shard.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return shards


def _from_expert_rank(local: Mapping[str, Tensor], rule: Rule, model: ModelConfig) -> Tensor:
    group = parallel_state.get_expert_model_parallel_group()
    rank, index = divmod(rule.expert or 0, _experts_per_rank(model))
    shard = local[rule.parameter.format(index)]
    whole = shard if rank == parallel_state.get_expert_model_parallel_rank() else torch.empty_like(shard)
    dist.broadcast(whole, dist.get_global_rank(group, rank), group=group)
    return whole


def _experts_per_rank(model: ModelConfig) -> int:
    size: int = parallel_state.get_expert_model_parallel_world_size()
    return model.num_experts // size


def _tp_size() -> int:
    size: int = parallel_state.get_tensor_model_parallel_world_size()
    return size


def _tp_rank() -> int:
    rank: int = parallel_state.get_tensor_model_parallel_rank()
    return rank
