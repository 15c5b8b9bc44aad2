"""Megatron-Core without a GPU.

Megatron asks CUDA for its device, its streams and its random state, and some of its code takes a CPU tensor for one that is
already where it belongs. `enable` answers those questions for the CPU. It is global, because what it replaces is, and it does
nothing where CUDA is present.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch


def enable() -> None:
    """Call once, before anything of Megatron is built."""
    if torch.cuda.is_available():
        return
    _compile_nothing()
    _answer_device_questions()
    _allocate_on_cpu()
    _use_cpu_random_state()
    _name_types_as_cuda()
    _split_sizes_as_lists()
    _gather_unequal_shares()


class _Stream:
    """Stands for a CUDA stream or event: CPU work is already done when anyone waits for it."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def record_event(self, *_: Any) -> "_Stream":
        return self

    def synchronize(self) -> None: ...


def _compile_nothing() -> None:
    """Megatron decorates small functions with `torch.compile`, which takes longer here than they ever do."""
    anything: Any = torch
    anything.compile = lambda function=None, **_: function if function is not None else lambda inner: inner


def _answer_device_questions() -> None:
    cuda: Any = torch.cuda
    stream = _Stream()
    cuda.current_device = lambda: "cpu"
    cuda.synchronize = cuda.empty_cache = lambda *_, **__: None
    cuda.Stream = cuda.Event = _Stream
    cuda.current_stream = cuda.default_stream = lambda *_: stream
    cuda.stream = lambda _: contextlib.nullcontext()
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self


def _allocate_on_cpu() -> None:
    """Literal `device="cuda"` in Megatron's schedules, optimizer and gradient clipping."""
    for name in ("tensor", "zeros", "ones", "empty", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return allocate


def _use_cpu_random_state() -> None:
    from megatron.core.tensor_parallel import random

    cuda: Any = torch.cuda

    def get_state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(state)

    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = get_state
    cuda.set_rng_state = cuda.random.set_rng_state = set_state
    random._get_cuda_rng_state, random._set_cuda_rng_state = get_state, set_state


def _name_types_as_cuda() -> None:
    """The distributed optimizer compares `parameter.type()` with the names of CUDA types."""
    tensor: Any = torch.Tensor
    original = tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = original(self, *args, **kwargs)
        return name.replace("torch.", "torch.cuda.", 1) if isinstance(name, str) else name

    tensor.type = type_


def _split_sizes_as_lists() -> None:
    """The token dispatcher turns split sizes into numpy only while it copies them from a GPU; all-to-all needs it always."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    moe_utils.maybe_move_tensor_to_cpu = token_dispatcher.maybe_move_tensor_to_cpu = to_host


def _gather_unequal_shares() -> None:
    """Experts that are cut over ranks exchange as many tokens as the router sends them; gloo gathers and scatters equal shares
    only, but its all-to-all takes any."""
    from megatron.core.tensor_parallel import mappings

    gather, scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather_shares(share: torch.Tensor, group: Any, sizes: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        if sizes is None or group.size() == 1:
            return gather(share, group, sizes, *args, **kwargs)
        return _exchange(torch.cat([share] * group.size()), [len(share)] * group.size(), list(sizes), group)

    def scatter_sums(whole: torch.Tensor, group: Any, sizes: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        if sizes is None or group.size() == 1:
            return scatter(whole, group, sizes, *args, **kwargs)
        own = int(sizes[group.rank()])
        received = _exchange(whole, list(sizes), [own] * group.size(), group)
        return received.view(group.size(), own, *whole.shape[1:]).sum(0)

    mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim = gather_shares, scatter_sums


def _exchange(sent: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
    """All-to-all of the first dimension, `send[r]` rows to and `receive[r]` rows from rank r."""
    received = sent.new_empty(sum(receive), *sent.shape[1:])
    torch.distributed.all_to_all_single(received, sent.contiguous(), receive, send, group=group)
    return received
