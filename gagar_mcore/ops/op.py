"""The compiled kernels as PyTorch operators, known to autograd, fake tensors and `torch.compile`. Arguments are those of
`fused`, already checked; `loss` and `constants` spell out a `LossSpec`."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from gagar_mcore.ops.build import Device
from gagar_mcore.ops.library import LOSS_CODES, NUM_COUNTS, Layout, Step, library
from gagar_mcore.ops.stats import MAXIMA, SUMS


@torch.library.custom_op("gagar::policy_step", mutates_args=())
def policy_step(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    flags: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    counts: Tensor | None,
    behaviour: Tensor | None,
    cu_seqlens: Tensor,
    cu_local: Tensor,
    num_local: int,
    cp_size: int,
    cp_rank: int,
    halved: bool,
    loss: str,
    constants: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss `[]`, gradient `[num_local]` float32, sums and maxima of `PolicyStats`."""
    gradient = torch.empty_like(logprobs, dtype=torch.float32)
    value = torch.empty((), dtype=torch.float64, device=logprobs.device)
    sums, maxima = (torch.empty(len(names), dtype=torch.float64, device=logprobs.device) for names in (SUMS, MAXIMA))
    *bounds, dual_clip, tis_cap, kl_coef, kappa = constants
    step = Step(
        layout_of(flags, cu_seqlens, cu_local, num_local, cp_size, cp_rank, halved),
        *(pointer(t) for t in (logprobs, old_logprobs, ref_logprobs, rollout_logprobs, flags, advantages, weights)),
        *(pointer(t) for t in (behaviour, counts, gradient, value, sums, maxima)),
        LOSS_CODES[loss], logprobs.dtype == torch.bfloat16, tis_cap > 0, dual_clip > 0,
        *bounds, dual_clip, tis_cap, kl_coef, kappa,
    )  # fmt: skip
    launch("step", step, logprobs.device)
    return value, gradient, sums, maxima


@policy_step.register_fake
def _(logprobs: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    numbers = [logprobs.new_empty(shape, dtype=torch.float64) for shape in ((), (len(SUMS),), (len(MAXIMA),))]
    return numbers[0], torch.empty_like(logprobs, dtype=torch.float32), numbers[1], numbers[2]


def keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    ctx.dtype = inputs[0].dtype
    ctx.save_for_backward(output[0], output[1])
    ctx.mark_non_differentiable(*output[1:])


def scale_gradient(ctx: Any, grad_loss: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    loss, gradient = ctx.saved_tensors
    scale = grad_loss + 0 * loss.detach()  # a loss that is no number makes the gradient none, too
    return (gradient * scale).to(ctx.dtype), *(None,) * 16


policy_step.register_autograd(scale_gradient, setup_context=keep_gradient)


@torch.library.custom_op("gagar::token_advantages", mutates_args=())
def token_advantages(
    flags: Tensor,
    advantages: Tensor,
    behaviour: Tensor | None,
    cu_seqlens: Tensor,
    cu_local: Tensor,
    num_local: int,
    cp_size: int,
    cp_rank: int,
    halved: bool,
    kappa: float,
) -> Tensor:
    result = torch.empty(num_local, device=flags.device)
    step = Step(layout_of(flags, cu_seqlens, cu_local, num_local, cp_size, cp_rank, halved))
    step.flags, step.advantages, step.weights = pointer(flags), pointer(advantages), pointer(advantages)
    step.behaviour, step.gradient, step.loss, step.kappa = pointer(behaviour), pointer(result), LOSS_CODES["broadcast"], kappa
    launch("step", step, flags.device)
    return result


@token_advantages.register_fake
def _(flags: Tensor, *rest: Any) -> Tensor:
    return flags.new_empty(rest[4], dtype=torch.float32)


@torch.library.custom_op("gagar::sequence_counts", mutates_args=())
def sequence_counts(
    flags: Tensor,
    logprobs: Tensor | None,
    old_logprobs: Tensor | None,
    rollout_logprobs: Tensor | None,
    cu_seqlens: Tensor,
    cu_local: Tensor,
    num_local: int,
    cp_size: int,
    cp_rank: int,
    halved: bool,
) -> Tensor:
    """Sum of log-ratios (0 without log-probs), trained and flagged tokens `[S, 3]` float64 of each sequence, on this rank."""
    counts = torch.empty(len(cu_seqlens) - 1, NUM_COUNTS, dtype=torch.float64, device=flags.device)
    step = Step(layout_of(flags, cu_seqlens, cu_local, num_local, cp_size, cp_rank, halved))
    step.flags, step.logprobs, step.rollout_logprobs = pointer(flags), pointer(logprobs), pointer(rollout_logprobs)
    step.old_logprobs, step.bf16 = pointer(old_logprobs), logprobs is not None and logprobs.dtype == torch.bfloat16
    launch("count", step, flags.device, counts)
    return counts


@sequence_counts.register_fake
def _(flags: Tensor, *rest: Any) -> Tensor:
    return flags.new_empty((len(rest[3]) - 1, NUM_COUNTS), dtype=torch.float64)


def layout_of(
    flags: Tensor, cu_seqlens: Tensor, cu_local: Tensor, num_local: int, cp_size: int, cp_rank: int, halved: bool
) -> Layout:
    bounds = pointer(cu_seqlens), pointer(cu_local)
    return Layout(*bounds, len(flags), num_local, len(cu_seqlens) - 1, cp_size, cp_rank, halved, 0)


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def launch(kind: str, step: Step, device: torch.device, *outputs: Tensor) -> None:
    """Run a kernel on the CPU, or put it on the current CUDA stream. Raises ValueError for bounds that contradict each other
    (a GPU does not tell: there the loss becomes NaN), RuntimeError where the device refuses."""
    name: Device = "cuda" if device.type == "cuda" else "cpu"
    compiled = library(name)
    if compiled is None:
        raise RuntimeError(f"no compiled library serves {device}")
    function = getattr(compiled, f"gagar_{kind}_{name}")
    pointers = [pointer(output) for output in outputs]
    if device.type == "cpu":
        raise_for(function(ctypes.byref(step), *pointers, torch.get_num_threads()))
        return
    with torch.cuda.device(device):
        size = getattr(compiled, f"gagar_{kind}_workspace")(ctypes.byref(step))
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        stream = torch.cuda.current_stream().cuda_stream
        if error := function(ctypes.byref(step), *pointers, pointer(workspace), stream):
            raise RuntimeError(f"the fused step could not be launched: {compiled.gagar_error(error).decode()}")


def raise_for(status: int) -> None:
    if status == 1:
        raise ValueError("cu_seqlens, cu_local: contradict each other or the number of tokens")
    if status == 2:
        raise MemoryError("the fused step could not allocate its partial sums")
