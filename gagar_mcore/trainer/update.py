"""One optimizer step: forward and backward over the micro-batches, reduction, clipping, Adam."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor

from gagar_mcore.trainer.microbatch import PackedTokens
from gagar_mcore.trainer.setup import Policy


class MicroBatch(Protocol):
    @property
    def packed_tokens(self) -> PackedTokens: ...


Part = TypeVar("Part", bound=MicroBatch)
Stats = TypeVar("Stats")


def run_model(gpt: Any, batch: PackedTokens) -> Tensor:
    """Logits `[1, T, vocabulary / TP]`."""
    tokens = batch.tokens[None]
    logits: Tensor = gpt(tokens, batch.packed.positions[None], None, packed_seq_params=batch.packed)
    return logits


def scored_logprobs(logits: Tensor, batch: PackedTokens, temperature: float) -> Tensor:
    """Log-probabilities `[N]` float32 of the scored tokens under the model's distribution at `temperature`, from its logits
    `[1, T, vocabulary / TP]`; those that predict a token stand one place before it."""
    rows = logits[0].index_select(0, batch.scored - 1).float() / temperature
    losses: Tensor = vocab_parallel_cross_entropy(rows[:, None], batch.tokens[batch.scored][:, None])
    return -losses[:, 0]


def accumulate_gradients(
    policy: Policy, parts: Sequence[Part], loss: Callable[[Part, Tensor], tuple[Tensor, Stats]], temperature: float = 1.0
) -> list[Stats]:
    """Sum the gradient of `loss(part, logprobs)` over `parts` and over all ranks into the model's gradient buffers;
    returns this rank's statistics, one a part. A collective: every rank runs as many parts."""

    def forward(data: Any, gpt: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Stats]]]:
        part = next(data)
        return run_model(gpt, part.packed_tokens), partial(finish, part)

    def finish(part: Part, logits: Tensor) -> tuple[Tensor, Tensor, Stats]:
        value, stats = loss(part, scored_logprobs(logits, part.packed_tokens, temperature))
        return value, torch.zeros([], dtype=torch.int), stats

    policy.ddp.zero_grad_buffer()
    policy.optimizer.zero_grad()
    stats: list[Stats] = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(parts),
        model=[policy.ddp],
        num_microbatches=len(parts),
        seq_length=0,  # read only by pipeline schedules
        micro_batch_size=1,
        forward_only=False,
    )
    return stats


def step_optimizer(policy: Policy, lr: float, weight_decay: float) -> float:
    """Clip, update, share the parameters; returns the norm of the gradient before clipping."""
    for group in policy.optimizer.param_groups:
        group["lr"] = lr
        group["weight_decay"] = weight_decay * group["wd_mult"]
    ok, grad_norm, _ = policy.optimizer.step()
    if not ok:
        raise RuntimeError("the optimizer refused the step: the gradient is not finite")
    return float(grad_norm)


def data_parallel_rank() -> int:
    """Ranks of one number hold the same sequences."""
    rank: int = parallel_state.get_data_parallel_rank()
    return rank


def over_replicas(values: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """Combine, in place, what data-parallel ranks found on their own sequences."""
    dist.all_reduce(values, operation, group=parallel_state.get_data_parallel_group())
    return values
