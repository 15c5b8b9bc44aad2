"""Weights between a checkpoint's tensors and the shards of the model on each rank."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.weight_map import Rule, rule_name, tensor_shapes, weight_rules
from gagar_mcore.weights.files import TensorReader


@torch.no_grad()
def load_tensors(chunks: Iterable[torch.nn.Module], model: ModelConfig, read: TensorReader) -> None:
    """Set this rank's shard of every parameter; one at a time is read. Raises ValueError where a tensor has another shape than
    the model."""
    local = local_tensors(chunks)
    for _, rule, name in held_rules(local, model):
        _set_shard(local.pop(name), rule, read)
    if local:
        raise RuntimeError(f"no weight rule for {sorted(local)}")


def _set_shard(shard: Tensor, rule: Rule, read: TensorReader) -> None:
    group = tensor_group(rule)
    own = rule.form.split([read(tensor) for tensor in rule.tensors], group.size())[group.rank()]
    if own.shape != shard.shape:
        raise ValueError(f"{rule.tensors[0]}: its shape does not fit the model of config.json")
    shard.copy_(own)


@torch.no_grad()
def gather_tensors(local: Mapping[str, Tensor], model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint, whole, on every rank, from the shards that `local_tensors` gives (or from anything of
    the same names and shapes, like gradients). A collective: all ranks iterate it to the end."""
    stages, shapes = _stages(local), tensor_shapes(model)
    for rule in weight_rules(model):
        stage, dtype = stages[_place(rule, model)[1]]
        if stage == parallel_state.get_pipeline_model_parallel_rank():
            whole = [tensor.contiguous() for tensor in rule.form.merge(_shards(local, rule, model))]
        else:
            whole = [torch.empty(shapes[name], dtype=dtype, device=_device(local)) for name in rule.tensors]
        group = parallel_state.get_pipeline_model_parallel_group()
        for name, tensor in zip(rule.tensors, whole, strict=True):
            _share(tensor, stage, group)
            yield name, tensor


def held_rules(local: Mapping[str, Tensor], model: ModelConfig) -> Iterator[tuple[int, Rule, str]]:
    """The rules whose parameters this rank holds a shard of: place among all rules, rule, name of the parameter here."""
    for number, rule in enumerate(weight_rules(model)):
        rank, name = _place(rule, model)
        if name in local and rank in (None, parallel_state.get_expert_model_parallel_rank()):
            yield number, rule, name


def owned_rules(local: Mapping[str, Tensor], model: ModelConfig) -> list[tuple[Rule, bool]]:
    """The `held_rules`, but for those that another pipeline stage or data-parallel rank is
    first to hold, so that every rule falls to one tensor group; and whether this rank is the first of it. A collective."""
    stages, owned = _stages(local), []
    for rule in weight_rules(model):
        rank, name = _place(rule, model)
        copy = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        if rank is not None:
            copy = parallel_state.get_expert_data_parallel_rank()
        is_here = rank in (None, parallel_state.get_expert_model_parallel_rank())
        if is_here and copy == 0 and stages[name][0] == parallel_state.get_pipeline_model_parallel_rank():
            owned.append((rule, tensor_group(rule).rank() == 0))
    return owned


def whole_tensors(local: Mapping[str, Tensor], model: ModelConfig, rule: Rule) -> list[Tensor]:
    """The checkpoint's tensors of one of the rank's `owned_rules`, on the first rank of its tensor group; nothing on the others.
    A collective of that group."""
    group = tensor_group(rule)
    shard = local[_place(rule, model)[1]].contiguous()
    shards = [torch.empty_like(shard) for _ in range(group.size())] if group.rank() == 0 else None
    dist.gather(shard, shards, dist.get_global_rank(group, 0), group=group)
    return rule.form.merge(shards) if shards else []


def local_tensors(chunks: Iterable[torch.nn.Module]) -> dict[str, Tensor]:
    """This rank's shards by the names they have in a model without a pipeline; experts by their number on this rank."""
    return {name: tensor for chunk in chunks for name, tensor in _named_tensors(chunk)}


def _named_tensors(chunk: Any) -> Iterator[tuple[str, Tensor]]:
    layers = [layer.layer_number - 1 for layer in chunk.decoder.layers]
    for name, tensor in chain(chunk.named_parameters(), chunk.named_buffers()):
        if name.startswith("decoder.layers."):
            _, _, number, rest = name.split(".", 3)
            name = f"decoder.layers.{layers[int(number)]}.{rest}"
        if not name.endswith("local_tokens_per_expert"):
            yield rule_name(name), tensor


def _place(rule: Rule, model: ModelConfig) -> tuple[int | None, str]:
    """The expert-parallel rank that has the parameter, None for all, and its name there."""
    if rule.expert is None:
        return None, rule.parameter
    rank, index = divmod(rule.expert, model.num_experts // parallel_state.get_expert_model_parallel_world_size())
    return rank, rule.parameter.format(index)


def tensor_group(rule: Rule) -> dist.ProcessGroup:
    """The ranks that the parameter is cut over."""
    if rule.expert is None:
        return parallel_state.get_tensor_model_parallel_group()
    return parallel_state.get_expert_tensor_parallel_group()


def _stages(local: Mapping[str, Tensor]) -> dict[str, tuple[int, torch.dtype]]:
    """The first pipeline stage that has each parameter, and its type. A collective."""
    group = parallel_state.get_pipeline_model_parallel_group()
    types: list[dict[str, torch.dtype]] = [{} for _ in range(group.size())]
    dist.all_gather_object(types, {name: tensor.dtype for name, tensor in local.items()}, group=group)
    return {name: (stage, dtype) for stage, of in reversed(list(enumerate(types))) for name, dtype in of.items()}


def _shards(local: Mapping[str, Tensor], rule: Rule, model: ModelConfig) -> Sequence[Tensor]:
    """The parameter as each rank of its tensor group has it, on all ranks of its stage."""
    rank, name = _place(rule, model)
    group = tensor_group(rule)
    shards = [torch.empty_like(local[name]) for _ in range(group.size())]
    experts = parallel_state.get_expert_model_parallel_group()
    if rank in (None, experts.rank()):
        dist.all_gather(shards, local[name].contiguous(), group=group)
    if rank is not None:
        for shard in shards:
            _share(shard, rank, experts)
    return shards


def _share(tensor: Tensor, rank: int, group: dist.ProcessGroup) -> None:
    """Overwrite `tensor` with that of `rank`, as counted in the group."""
    if group.size() > 1:
        dist.broadcast(tensor, dist.get_global_rank(group, rank), group=group)


def _device(local: Mapping[str, Tensor]) -> torch.device:
    return next(iter(local.values())).device
