"""Parameters that one rank of a layout holds."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import accumulate

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.parameters import ParameterCount, attention_parameters, expert_parameters
from gagar_mcore.trainer.layout import stage_layers


def parameters_on_rank(model: ModelConfig, layout: TrainerSection, stage: int) -> ParameterCount:
    """What each rank of pipeline stage `stage` (from 0) allocates; the router's selection bias, a buffer, counts among them.

    Embeddings, projections, sinks and dense feed-forward networks are split over TP; experts over EP and ETP; router and norms
    are whole on each rank. The first stage has the input embedding, the last one output layer, final norm and MTP layers."""
    hidden, tp = model.hidden_size, layout.tp
    layers = stage_members(model, layout, stage)
    first, last = stage == 0, stage == layout.pp - 1
    moe_layers = sum(model.is_moe(layer) for layer in layers)
    norms = 2 * hidden + (2 * model.head_dim if model.qk_norm else 0)
    return ParameterCount(
        embeddings=(first + last) * model.vocab_size * hidden // tp,
        attention=sum(attention_parameters(model, model.is_sliding(layer)) for layer in layers) // tp,
        dense=(len(layers) - moe_layers) * 3 * hidden * model.ffn_size // tp,
        router=moe_layers * model.num_experts * (hidden + model.selection_bias),
        experts=moe_layers * model.num_experts // layout.ep * expert_parameters(model) // layout.etp,
        norms=len(layers) * norms + last * hidden,
        mtp=last * model.mtp_layers * _mtp_parameters(model, tp),
    )


def mean_parameters(model: ModelConfig, layout: TrainerSection) -> ParameterCount:
    """The mean of all pipeline stages, rounded down."""
    stages = [parameters_on_rank(model, layout, stage) for stage in range(layout.pp)]
    return ParameterCount(*(sum(getattr(s, kind.name) for s in stages) // layout.pp for kind in fields(ParameterCount)))


def stage_members(model: ModelConfig, layout: TrainerSection, stage: int) -> list[int]:
    """Numbers of the layers of a pipeline stage, those of all its interleaved chunks."""
    return [layer for part, layers in _parts(model, layout) if part % layout.pp == stage for layer in layers]


def _parts(model: ModelConfig, layout: TrainerSection) -> Iterator[tuple[int, range]]:
    sizes = stage_layers(model.num_layers, layout.pp, layout.vpp)
    for part, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        yield part, range(end - size, end)


def _mtp_parameters(model: ModelConfig, tp: int) -> int:
    hidden = model.hidden_size
    split = 2 * hidden * hidden + attention_parameters(model, sliding=True) + 3 * hidden * model.ffn_size
    return split // tp + 5 * hidden
