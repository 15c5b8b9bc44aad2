"""Bytes of weights, gradients and optimizer state on one rank, with Megatron's distributed optimizer."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.parameters import ParameterCount
from gagar_mcore.plan.activations import value_bytes


@dataclass(frozen=True, slots=True)
class States:
    weights: float
    gradients: float
    optimizer: float


def training_states(count: ParameterCount, layout: TrainerSection) -> States:
    """Weights in the recipe's precision and a gradient for each that trains. Adam's state, fp32 master weights (where weights are
    not fp32 themselves) and two moments, is split over the ranks that hold the same weights, and so is the fp32 copy of bf16
    gradients that an update reads."""
    dense, experts = trained_parameters(count, layout)
    master = 4 if layout.precision == "bf16" else 0
    summed = 4 if layout.gradient_dtype == "bf16" and not layout.offload_optimizer else 0
    moments = 2 * (2 if layout.optimizer.state_dtype == "bf16" else 4)
    return States(
        weights=value_bytes(layout) * (count.model + count.mtp),
        gradients=gradient_bytes(layout) * (dense + experts),
        optimizer=(master + moments + summed) * (dense / dense_replicas(layout) + experts / expert_replicas(layout)),
    )


def trained_parameters(count: ParameterCount, layout: TrainerSection) -> tuple[int, int]:
    """Those outside experts, and those of experts."""
    frozen = count.experts + (count.router if layout.freeze_router else 0)
    return count.model - frozen + (count.mtp if layout.mtp == "train" else 0), count.experts


def gradient_bytes(layout: TrainerSection) -> int:
    return 2 if layout.gradient_dtype == "bf16" else 4


def dense_replicas(layout: TrainerSection) -> int:
    """Ranks that hold the same weights outside experts."""
    return layout.dp * layout.cp


def expert_replicas(layout: TrainerSection) -> int:
    """Ranks that hold the same experts."""
    return layout.world_size // (layout.pp * layout.ep * layout.etp)
