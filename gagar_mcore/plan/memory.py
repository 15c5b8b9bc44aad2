"""Bytes that training takes on one GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.parameters import ParameterCount
from gagar_mcore.plan.activations import (
    Activations,
    chunked_logits,
    full_logits,
    layer_activations,
    mtp_kept,
    passes_in_flight,
)
from gagar_mcore.plan.kinds import ByKind
from gagar_mcore.plan.parameters import layer_kinds, mean_parameters, parameters_on_rank, unlike_stages
from gagar_mcore.plan.states import training_states
from gagar_mcore.plan.workload import Workload

EXPERT_IMBALANCE = 2.0  # tokens that the busiest expert-parallel rank gets, over the mean


@dataclass(frozen=True, slots=True)
class Memory(ByKind):
    """Bytes on one GPU.

    activations: kept from forward to backward pass, for all micro-batches in flight. attention, context, feed_forward: what the
    layer under work takes beyond that; `context` is what context parallelism adds. expert_imbalance: what more tokens than the
    mean add to them. logits: of the output layer."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    attention: float
    context: float
    feed_forward: float
    expert_imbalance: float
    logits: float


def memory_on_rank(
    model: ModelConfig, layout: TrainerSection, work: Workload, stage: int, imbalance: float = EXPERT_IMBALANCE
) -> Memory:
    """On each rank of a pipeline stage (from 0)."""
    kinds = layer_kinds(model, layout.pp, layout.vpp, stage)
    layers = [(layer_activations(model, layout, work, layer), count) for layer, count in kinds.items()]
    in_flight = passes_in_flight(layout, stage, work.microbatches(layout))
    logits = chunked_logits(model, layout, work) if stage == layout.pp - 1 else 0.0
    memory = _memory(parameters_on_rank(model, layout, stage), layout, layers, in_flight, imbalance, logits)
    return memory if logits == 0 else replace(memory, activations=memory.activations + mtp_kept(model, layout, work))


def worst_stage(
    model: ModelConfig, layout: TrainerSection, work: Workload, imbalance: float = EXPERT_IMBALANCE
) -> tuple[int, Memory]:
    """The pipeline stage that takes most."""
    stages = {
        stage: memory_on_rank(model, layout, work, stage, imbalance) for stage in unlike_stages(model, layout.pp, layout.vpp)
    }
    return max(stages.items(), key=lambda item: item[1].total)


def mean_stage(model: ModelConfig, layout: TrainerSection, work: Workload) -> Memory:
    """As published estimates count: parameters and layers of the mean stage, the first stage's micro-batches in flight, equal
    load of experts, and logits that exist as a whole."""
    kinds = layer_kinds(model, pp=1, vpp=1, stage=0)
    layers = [(layer_activations(model, layout, work, layer), count) for layer, count in kinds.items()]
    in_flight = passes_in_flight(layout, 0, work.microbatches(layout)) / layout.pp
    logits = full_logits(model, layout, work)
    return _memory(mean_parameters(model, layout), layout, layers, in_flight, 1.0, logits)


def _memory(
    count: ParameterCount,
    layout: TrainerSection,
    layers: Sequence[tuple[Activations, int]],
    in_flight: float,
    imbalance: float,
    logits: float,
) -> Memory:
    states = training_states(count, layout)
    kept = in_flight * sum(count * layer.kept for layer, count in layers)
    kept_by_experts = in_flight * sum(count * layer.kept_by_experts for layer, count in layers)
    return Memory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=0.0 if layout.offload_optimizer else states.optimizer,
        activations=kept,
        attention=max(layer.attention for layer, _ in layers),
        context=max(layer.context for layer, _ in layers),
        feed_forward=max(layer.feed_forward for layer, _ in layers),
        expert_imbalance=(imbalance - 1) * (kept_by_experts + max(layer.by_experts for layer, _ in layers)),
        logits=logits,
    )
