"""Routing replay: tokens go to the experts that the rollout engine sent them to, weighted by the trainer's own router.

The choice travels with the packed sequences of its micro-batch, so that every pass over a layer, recomputation included, finds
the choice of the tokens it runs, whatever other micro-batches are under way."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor

from gagar_mcore.models.packed import PackedSequences


class ExpertReplay:
    """Replaces the choice of one layer's router.

    column: the layer's place in `PackedSequences.experts`. agreement `[2]` float64: choices replayed so far in training, and how
    many of them the router would have made itself."""

    def __init__(self, layer: Any, column: int) -> None:
        self.column = column
        self.choice: Tensor | None = None
        self.agreement = torch.zeros(2, dtype=torch.float64, device=layer.mlp.router.weight.device)
        layer.mlp.router.router_replay = self
        layer.register_forward_pre_hook(self._take_choice, with_kwargs=True)
        if layer.mlp.moe_layer_recompute:
            self._recompute_with_choice(layer.mlp)

    def _take_choice(self, layer: Any, _: Any, arguments: dict[str, Any]) -> None:
        packed: PackedSequences = arguments["packed_seq_params"]
        self.choice = (
            None if packed.experts is None else own_share(packed.experts[:, self.column], layer.config.sequence_parallel)
        )

    def _recompute_with_choice(self, experts: Any) -> None:
        """Megatron would run the experts again after other micro-batches have changed the choice."""
        experts.moe_layer_recompute, forward = False, experts.forward

        def recomputed(hidden: Tensor, *arguments: Any, **keywords: Any) -> Any:
            choice = self.choice

            def run(hidden: Tensor) -> Any:
                self.choice = choice
                return forward(hidden, *arguments, **keywords)

            return tensor_parallel.checkpoint(run, False, hidden) if experts.training else forward(hidden, *arguments, **keywords)

        experts.forward = recomputed

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, choose: Callable[..., Any]
    ) -> tuple[Tensor, Tensor]:
        """What Megatron asks of an object in `router_replay`: scores and indices `[T, topk]` of the experts chosen for scores
        `[T, experts]`."""
        values, own = choose(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if self.choice is None:
            return values, own
        recorded = self.choice[:, :1] >= 0
        chosen = torch.where(recorded, self.choice, own)
        if torch.is_grad_enabled():  # not when scoring; and of a pass that is computed again, that one time
            same = (chosen[:, :, None] == own[:, None]).any(-1) & recorded
            self.agreement += torch.stack([recorded.sum() * topk, same.sum()])
        return scores.gather(1, chosen), chosen


def replay_experts(layers: Sequence[Any], moe_layers: Sequence[bool]) -> list[ExpertReplay]:
    """Attach to the layers with experts among `layers`, those of one pipeline stage; moe_layers: of the whole model."""
    numbers = [layer.layer_number - 1 for layer in layers]
    return [
        ExpertReplay(layer, sum(moe_layers[:number])) for layer, number in zip(layers, numbers, strict=True) if moe_layers[number]
    ]


def agreement(replays: Sequence[ExpertReplay], device: torch.device) -> float:
    """Over all of them and all ranks, since the last call: the share of replayed choices that routers would have made. A
    collective."""
    counts = sum((replay.agreement for replay in replays), torch.zeros(2, dtype=torch.float64, device=device))
    for replay in replays:
        replay.agreement.zero_()
    dist.all_reduce(counts)
    replayed, same = counts.tolist()
    return same / max(replayed, 1.0)


def own_share(rows: Tensor, sequence_parallel: bool) -> Tensor:
    """The rows of a tensor `[T, ...]` whose tokens lie on this tensor-parallel rank."""
    if not sequence_parallel:
        return rows
    size: int = parallel_state.get_tensor_model_parallel_world_size()
    return rows.chunk(size)[parallel_state.get_tensor_model_parallel_rank()]
