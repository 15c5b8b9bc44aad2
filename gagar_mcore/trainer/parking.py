"""What a trainer holds on its device, put away on the host while it waits and an engine on the same card has its turn."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, UntypedStorage

from gagar_mcore.trainer.setup import Policy


@contextmanager
def parked(policy: Policy, active: bool = True) -> Iterator[None]:
    """Weights and the optimizer's state are on the host meanwhile, gradients nowhere: a step clears them before it adds to them.
    Nothing may compute with the policy inside."""
    if not active:
        yield
        return
    kept = [(storage, _put_away(storage)) for storage in _storages(held(policy))]
    cleared = [(storage, storage.nbytes()) for storage in _storages(gradients(policy))]
    for storage, _ in cleared:
        storage.resize_(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for storage, size in cleared:
            storage.resize_(size)
        for storage, copy in kept:
            storage.resize_(len(copy))
            _bytes(storage).copy_(copy)


def held(policy: Policy) -> Iterator[Tensor]:
    """Every tensor that lasts from step to step, but for gradients; several may share memory."""
    for chunk in policy.chunks:
        yield from (tensor.data for tensor in (*chunk.parameters(), *chunk.buffers()))
    for part in policy.optimizer.chained_optimizers:
        yield from (tensor for state in part.optimizer.state.values() for tensor in state.values())


def gradients(policy: Policy) -> Iterator[Tensor]:
    for chunk in policy.ddp:
        yield from (buffer.grad_data for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers))


def _storages(tensors: Iterator[Tensor]) -> list[UntypedStorage]:
    """Of those that lie on the policy's device: what is on the host for good stays, but where the host is the device."""
    on_gpu = torch.cuda.is_available()
    there = (tensor.untyped_storage() for tensor in tensors if tensor.is_cuda == on_gpu)
    return list({storage.data_ptr(): storage for storage in there if storage.nbytes()}.values())


def _put_away(storage: UntypedStorage) -> Tensor:
    copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
    copy.copy_(_bytes(storage))
    storage.resize_(0)
    return copy


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
