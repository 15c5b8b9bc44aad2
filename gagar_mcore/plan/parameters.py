"""Parameters that one rank of a layout holds."""

from dataclasses import fields
from functools import cache
from itertools import accumulate

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.parameters import ParameterCount, attention_parameters, expert_parameters
from gagar_mcore.trainer.layout import stage_layers


def parameters_on_rank(model: ModelConfig, layout: TrainerSection, stage: int) -> ParameterCount:
    """What each rank of pipeline stage `stage` (from 0) allocates; the router's selection bias, a buffer, counts among them.

    Embeddings, projections, sinks and dense feed-forward networks are split over TP; experts over EP and ETP; router and norms
    are whole on each rank. The first stage has the input embedding, the last one output layer, final norm and MTP layers."""
    return _parameters(model, layout.pp, layout.vpp, stage, layout.tp, layout.ep, layout.etp)


@cache
def _parameters(model: ModelConfig, pp: int, vpp: int, stage: int, tp: int, ep: int, etp: int) -> ParameterCount:
    hidden = model.hidden_size
    kinds = layer_kinds(model, pp, vpp, stage)
    first, last = stage == 0, stage == pp - 1
    layers, moe_layers = sum(kinds.values()), sum(count for layer, count in kinds.items() if model.is_moe(layer))
    norms = 2 * hidden + (2 * model.head_dim if model.qk_norm else 0)
    return ParameterCount(
        embeddings=(first + last) * model.vocab_size * hidden // tp,
        attention=sum(n * attention_parameters(model, model.is_sliding(layer)) for layer, n in kinds.items()) // tp,
        dense=(layers - moe_layers) * 3 * hidden * model.ffn_size // tp,
        router=moe_layers * model.num_experts * (hidden + model.selection_bias),
        experts=moe_layers * model.num_experts // ep * expert_parameters(model) // etp,
        norms=layers * norms + last * hidden,
        mtp=last * model.mtp_layers * _mtp_parameters(model, tp),
    )


def mean_parameters(model: ModelConfig, layout: TrainerSection) -> ParameterCount:
    """The mean of all pipeline stages, rounded down."""
    stages = [parameters_on_rank(model, layout, stage) for stage in range(layout.pp)]
    return ParameterCount(*(sum(getattr(s, kind.name) for s in stages) // layout.pp for kind in fields(ParameterCount)))


@cache
def layer_kinds(model: ModelConfig, pp: int, vpp: int, stage: int) -> dict[int, int]:
    """The layers of a pipeline stage that differ in kind, each with the number of those like it."""
    found: dict[tuple[bool, bool], list[int]] = {}
    for layer in stage_members(model.num_layers, pp, vpp, stage):
        found.setdefault((model.is_sliding(layer), model.is_moe(layer)), []).append(layer)
    return {layers[0]: len(layers) for layers in found.values()}


@cache
def unlike_stages(model: ModelConfig, pp: int, vpp: int) -> list[int]:
    """The first of the pipeline stages that hold the same: it has most micro-batches in flight."""
    found: dict[tuple[object, ...], int] = {}
    for stage in range(pp):
        kinds = {(model.is_sliding(layer), model.is_moe(layer), n) for layer, n in layer_kinds(model, pp, vpp, stage).items()}
        found.setdefault((stage == 0, stage == pp - 1, frozenset(kinds)), stage)
    return list(found.values())


def stage_members(num_layers: int, pp: int, vpp: int, stage: int) -> list[int]:
    """Numbers of the layers of a pipeline stage, those of all its interleaved chunks."""
    sizes = stage_layers(num_layers, pp, vpp)
    ends = list(accumulate(sizes))
    return [layer for part in range(stage, pp * vpp, pp) for layer in range(ends[part] - sizes[part], ends[part])]


def _mtp_parameters(model: ModelConfig, tp: int) -> int:
    hidden = model.hidden_size
    split = 2 * hidden * hidden + attention_parameters(model, sliding=True) + 3 * hidden * model.ffn_size
    return split // tp + 5 * hidden
