"""One optimizer step: forward and backward over the micro-batches, reduction, clipping, Adam."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from gagar_mcore.ops.logprob import linear_logprobs
from gagar_mcore.trainer.microbatch import PackedTokens
from gagar_mcore.trainer.mtp import MtpPart, input_embedding, mtp_loss
from gagar_mcore.trainer.setup import Policy


@dataclass(frozen=True, slots=True)
class Scores:
    """logprobs, entropies `[N]`: see `scored_logprobs`. mtp `[]`: loss of multi-token prediction, see `mtp_loss`."""

    logprobs: Tensor
    entropies: Tensor | None
    mtp: Tensor


Part = TypeVar("Part", bound=MtpPart)
Stats = TypeVar("Stats")


def run_model(gpt: Any, batch: PackedTokens) -> Tensor:
    """Hidden states `[T, 1, hidden]` after the layers of `gpt`, after the last stage the final ones; with sequence parallelism
    this rank's `T / TP` of them."""
    tokens = batch.tokens[None]
    hidden: Tensor = gpt(tokens, batch.packed.positions[None], None, packed_seq_params=batch.packed)
    return hidden


def scored_logprobs(
    gpt: Any, hidden: Tensor, batch: PackedTokens, temperature: float, entropies: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the scored tokens and, where asked for and without gradient, entropies of the model's distribution
    at `temperature`, both `[N]` float32, from what `run_model` gave."""
    gathered = gpt.config.sequence_parallel
    if gathered:  # its backward pass adds up what the vocabulary's shards contribute, as before any column-parallel layer
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    return linear_logprobs(
        hidden[:, 0].index_select(0, batch.predicting),
        gpt.output_layer.weight,
        batch.targets,
        temperature=temperature,
        group=parallel_state.get_tensor_model_parallel_group(),
        entropy="detached" if entropies else "none",
        reduce_hidden_grad=not gathered,
    )


def accumulate_gradients(
    policy: Policy,
    parts: Sequence[Part],
    loss: Callable[[Part, Scores], tuple[Tensor, Stats]],
    temperature: float = 1.0,
    entropies: bool = True,
) -> list[Stats]:
    """Sum the gradient of `loss(part, scores)` over `parts` and over all ranks into the model's gradient buffers; returns this
    rank's statistics, one a part, none but on the last pipeline stage. A collective: every rank runs as many parts, and where
    stages interleave a multiple of `pp`."""

    embedding = input_embedding(policy)

    def finish(part: Part, hidden: Tensor) -> tuple[Tensor, Stats]:
        scored = scored_logprobs(policy.chunks[-1], hidden, part.packed_tokens, temperature, entropies)
        return loss(part, Scores(*scored, mtp_loss(policy, part, hidden, embedding, temperature)))

    for chunk in policy.ddp:
        chunk.zero_grad_buffer()
    policy.optimizer.zero_grad()
    return run_schedule(policy, parts, finish)


def run_schedule(
    policy: Policy, parts: Sequence[Part], finish: Callable[[Part, Tensor], tuple[Tensor, Stats]], forward_only: bool = False
) -> list[Stats]:
    """Every part through all pipeline stages, and back unless `forward_only`; after the last stage `finish(part, hidden states)`
    gives the loss and what is to be returned of the part. A collective."""

    def forward(data: Any, gpt: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Stats]]]:
        part = next(data)
        return run_model(gpt, part.packed_tokens), partial(end, part)

    def end(part: Part, hidden: Tensor) -> tuple[Tensor, Tensor, Stats]:
        loss, stats = finish(part, hidden)
        return loss, torch.zeros([], dtype=torch.int), stats

    stats: list[Stats] = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=[iter(parts) for _ in policy.ddp],
        model=list(policy.ddp),
        num_microbatches=len(parts),
        seq_length=0,  # stages tell each other the length of every part
        micro_batch_size=1,
        forward_only=forward_only,
    )
    return stats


def step_optimizer(policy: Policy, lr: float, weight_decay: float) -> float:
    """Clip, update, share the parameters; returns the norm of the gradient before clipping.

    Raises RuntimeError, with the parameters as they were, where the gradient of any rank is not finite (Megatron looks only
    where it scales losses), and after the step where its norm is not."""
    if not finite_everywhere(policy):
        raise RuntimeError("the gradient is not finite: look at the loss of the steps before")
    for group in policy.optimizer.param_groups:
        group["lr"] = lr
        group["weight_decay"] = weight_decay * group["wd_mult"]
    _, grad_norm, _ = policy.optimizer.step()
    if not math.isfinite(grad_norm):  # finite entries, but so large that clipping has made all of them 0
        raise RuntimeError("the norm of the gradient is not finite: look at the loss of the steps before")
    return float(grad_norm)


def finite_everywhere(policy: Policy) -> bool:
    """Whether the gradient buffers of all ranks hold numbers. A collective."""
    buffers = [buffer for chunk in policy.ddp for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    largest = torch.stack([torch.linalg.vector_norm(buffer.grad_data, torch.inf) for buffer in buffers])
    finite = largest.isfinite().all().float()
    dist.all_reduce(finite, dist.ReduceOp.MIN)
    return bool(finite)


def data_parallel_rank() -> int:
    """Ranks of one number hold the same sequences."""
    rank: int = parallel_state.get_data_parallel_rank()
    return rank


def context_parallel_group() -> Any:
    """The ranks that share sequences; None where each is whole on one."""
    group = parallel_state.get_context_parallel_group()
    return group if group.size() > 1 else None


def over_replicas(values: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """Combine, in place, what data-parallel and context-parallel ranks found on their own tokens."""
    dist.all_reduce(values, operation, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    return values


def over_last_stages(values: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """Combine, in place and on every rank, what the ranks of the last pipeline stage found on their own tokens; the values of
    other stages do not count."""
    over_replicas(values, operation)
    stages = parallel_state.get_pipeline_model_parallel_group()
    dist.broadcast(values, dist.get_global_rank(stages, stages.size() - 1), group=stages)
    return values
