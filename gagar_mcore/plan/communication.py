"""Bytes that a GPU sends in one step, by kind of parallelism, counted as in ring collectives: a gather or a reduction of B bytes
over n ranks has each send (n - 1) / n B."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.context import context_bytes
from gagar_mcore.plan.kinds import ByKind
from gagar_mcore.plan.parameters import layer_kinds, parameters_on_rank
from gagar_mcore.plan.states import dense_replicas, expert_replicas, gradient_bytes, trained_parameters, value_bytes
from gagar_mcore.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class Communication(ByKind):
    """Bytes. tensor: gathers and reduce-scatters of sequence parallelism. expert_tensor: the same around split experts. experts:
    all-to-all of tokens. context: keys and values around the ring, halos of sliding layers. pipeline: between stages. gradients:
    their reduce-scatter over replicas; weights: their gather after the update."""

    tensor: float
    expert_tensor: float
    experts: float
    context: float
    pipeline: float
    gradients: float
    weights: float


def step_communication(model: ModelConfig, layout: TrainerSection, work: Workload) -> Communication:
    """Of a rank of an inner pipeline stage; whole layers that are computed again communicate again."""
    kinds = layer_kinds(model, layout.pp, layout.vpp, layout.pp // 2)
    layers, moe_layers = sum(kinds.values()), sum(count for layer, count in kinds.items() if model.is_moe(layer))
    stream = work.tokens / (layout.dp * layout.cp) * model.hidden_size * value_bytes(layout)
    copies = stream / layout.tp * model.top_k  # what a rank's tokens bring to experts
    again = layout.recompute == "full"
    gathers = 5 + 2 * again  # forward two; backward three, since the input is gathered once more for the weights' gradient
    gradients, weights = _replica_bytes(model, layout)
    return Communication(
        tensor=gathers * (2 * layers - moe_layers) * _ring(layout.tp) * stream,
        expert_tensor=gathers * moe_layers * _ring(layout.etp) * copies * layout.etp,
        experts=(4 + 2 * again) * moe_layers * _ring(layout.ep) * copies,
        context=sum(count * _context_sent(model, layout, work, layer) for layer, count in kinds.items()),
        pipeline=2 * layout.vpp * stream / layout.tp if layout.pp > 1 else 0.0,
        gradients=gradients,
        weights=weights,
    )


def _context_sent(model: ModelConfig, layout: TrainerSection, work: Workload, layer: int) -> float:
    """Of one layer."""
    once = context_bytes(model, layout, work, layer)
    forward = once.forward_sent * (2 if layout.recompute == "full" else 1)
    passes = work.tokens / (layout.dp * layout.cp) / work.tokens_at_once(layout)
    return passes * (forward + once.backward_sent)


def _replica_bytes(model: ModelConfig, layout: TrainerSection) -> tuple[float, float]:
    """Of gradients and of weights."""
    dense, experts = trained_parameters(parameters_on_rank(model, layout, layout.pp // 2), layout)
    entries = _ring(dense_replicas(layout)) * dense + _ring(expert_replicas(layout)) * experts
    return gradient_bytes(layout) * entries, value_bytes(layout) * entries


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks
