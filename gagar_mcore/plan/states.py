"""Bytes of weights, gradients and optimizer state on one rank, with Megatron's distributed optimizer."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.parameters import ParameterCount


@dataclass(frozen=True, slots=True)
class States:
    weights: float
    gradients: float
    optimizer: float


def training_states(count: ParameterCount, layout: TrainerSection) -> States:
    """Weights in the recipe's precision and a gradient for each that trains; Adam's state is split over the ranks that hold the
    same weights."""
    dense, experts = trained_parameters(count, layout)
    return States(
        weights=value_bytes(layout) * (count.model + count.mtp),
        gradients=gradient_bytes(layout) * (dense + experts),
        optimizer=state_bytes(layout) * (dense / dense_replicas(layout) + experts / expert_replicas(layout)),
    )


def value_bytes(layout: TrainerSection) -> int:
    """Of a weight or an activation."""
    return 2 if layout.precision == "bf16" else 4


def state_bytes(layout: TrainerSection) -> int:
    """Of one parameter: two moments, and an fp32 master weight unless it is fp32 itself."""
    moments = 2 * (2 if layout.optimizer.state_dtype == "bf16" else 4)
    return moments + (4 if layout.precision == "bf16" else 0)


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
