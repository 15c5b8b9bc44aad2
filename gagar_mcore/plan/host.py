"""Bytes that a rank takes in the memory of its node."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.kinds import ByKind
from gagar_mcore.plan.parameters import parameters_on_rank, unlike_stages
from gagar_mcore.plan.states import trained_parameters, training_states, value_bytes

GATHERED_BYTES = 12  # master weight and two moments, all in fp32


@dataclass(frozen=True, slots=True)
class HostMemory(ByKind):
    """optimizer: its state where that is offloaded, pinned. reference: weights that the loss compares with. checkpoint: the
    optimizer state of all the rank's weights, which Megatron gathers on one of the ranks that hold the same weights to save it,
    and makes room for on each of them to load it; with `async_checkpoint` also the weights. publish: the largest parameter,
    whole, on its way to a file."""

    optimizer: float
    reference: float
    checkpoint: float
    publish: float


def host_on_rank(model: ModelConfig, layout: TrainerSection, stage: int) -> HostMemory:
    """Of each rank of a pipeline stage (from 0)."""
    count = parameters_on_rank(model, layout, stage)
    states = training_states(count, layout)
    return HostMemory(
        optimizer=states.optimizer if layout.offload_optimizer else 0.0,
        reference=states.weights if layout.loss.kl_coef else 0.0,
        checkpoint=GATHERED_BYTES * sum(trained_parameters(count, layout)) + (states.weights if layout.async_checkpoint else 0.0),
        publish=value_bytes(layout) * model.vocab_size * model.hidden_size,
    )


def worst_host(model: ModelConfig, layout: TrainerSection) -> HostMemory:
    """Of the pipeline stage that takes most."""
    stages = (host_on_rank(model, layout, stage) for stage in unlike_stages(model, layout.pp, layout.vpp))
    return max(stages, key=lambda host: host.total)
