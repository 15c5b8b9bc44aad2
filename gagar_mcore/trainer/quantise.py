"""Passes with the weights that engines read. Imported after `rank.start_rank`."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.shards import Form
from gagar_mcore.models.weight_map import Rule
from gagar_mcore.trainer.scoring import on_host
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.shards import held_rules, local_tensors, tensor_group
from gagar_mcore.weights.storage import Storage, units_of


def pass_weights(policy: Policy, trainer: TrainerSection) -> AbstractContextManager[None]:
    """The weights of forward and backward passes while it lasts: the policy's own, or what `trainer.quantise` makes of them. A
    gradient is taken there and applied to the policy's own (straight-through)."""
    if trainer.quantise == "none":
        return nullcontext()
    return as_read(policy, Storage(policy.model, trainer.quantise))


@contextmanager
def as_read(policy: Policy, storage: Storage) -> Iterator[None]:
    """What a reader of published weights gets, rounded to the model's precision, in the model while it lasts; the policy's own
    weights lie on the host. A collective."""
    local = local_tensors(policy.chunks)
    own = {name: on_host(tensor) for name, tensor in local.items()}
    with torch.no_grad():
        for _, rule, name in held_rules(local, policy.model):
            _round(local[name], rule, storage)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in local.items():
                tensor.copy_(own[name])


def _round(shard: Tensor, rule: Rule, storage: Storage) -> None:
    """Blocks of a scale may lie across ranks, so each rank rounds the whole parameter and keeps its shard. A collective of the
    parameter's tensor group."""
    group = tensor_group(rule)
    shards = [torch.empty_like(shard) for _ in range(group.size())]
    dist.all_gather(shards, shard.contiguous(), group=group)
    shard.copy_(_as_read(rule.form, rule.tensors, shards, storage)[group.rank()])


def _as_read(form: Form, names: tuple[str, ...], shards: list[Tensor], storage: Storage) -> list[Tensor]:
    whole = dict(zip(names, form.merge(shards), strict=True))
    read = [storage.as_read({name: whole[name] for name in unit}) for unit in units_of(names)]
    return form.split([tensor.to(shards[0].dtype) for unit in read for tensor in unit.values()], len(shards))
