"""Seconds that a step takes, to rank layouts by: a lower bound for computation at a stated efficiency, an upper one for
communication, none of which is hidden behind computation. It orders layouts; it does not predict a run."""

from dataclasses import dataclass
from functools import lru_cache

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.flops import attention_flops, linear_flops
from gagar_mcore.plan.communication import step_communication
from gagar_mcore.plan.gpus import COMPUTE_EFFICIENCY, GPUS_PER_NODE, LINK_EFFICIENCY, PCIE_BYTES, Gpu
from gagar_mcore.plan.kinds import ByKind
from gagar_mcore.plan.parameters import parameters_on_rank
from gagar_mcore.plan.states import dense_replicas, expert_replicas, state_bytes, trained_parameters
from gagar_mcore.plan.workload import Workload
from gagar_mcore.trainer.layout import stage_layers


@dataclass(frozen=True, slots=True)
class Cost(ByKind):
    """Seconds. bubble: stages that wait for others at the step's beginning and end. replicas: gradients and weights.
    offload: the optimizer on the host."""

    compute: float
    tensor: float
    experts: float
    context: float
    pipeline: float
    bubble: float
    replicas: float
    offload: float


def step_cost(model: ModelConfig, layout: TrainerSection, work: Workload, gpu: Gpu) -> Cost:
    """The bubble is (pp - 1) / (vpp m) of the time of m micro-batches (Narayanan et al. 2021, arxiv.org/abs/2104.04473)."""
    sent = step_communication(model, layout, work)
    tp, cp, etp = layout.tp, layout.cp, layout.etp
    compute = _compute_seconds(model, layout, work, gpu)
    tensor = _seconds(sent.tensor, gpu, 1, tp) + _seconds(sent.expert_tensor, gpu, 1, etp)
    experts = _seconds(sent.experts, gpu, etp, layout.ep)
    context = _seconds(sent.context, gpu, tp, cp)
    pipeline = _seconds(sent.pipeline, gpu, tp * cp * layout.dp, layout.pp)
    working = compute + tensor + experts + context + pipeline
    return Cost(
        compute=compute,
        tensor=tensor,
        experts=experts,
        context=context,
        pipeline=pipeline,
        bubble=(layout.pp - 1) / (layout.vpp * work.microbatches(layout)) * working,
        replicas=_seconds(sent.gradients + sent.weights, gpu, tp, cp * layout.dp),
        offload=_offload_seconds(model, layout) if layout.offload_optimizer else 0.0,
    )


def _seconds(sent: float, gpu: Gpu, apart: int, ranks: int) -> float:
    """Over NVLink what goes to members of the group in the sender's node, over the network the rest. Members of the group
    stand `apart` ranks from each other."""
    if ranks == 1:
        return 0.0
    neighbours = max(1, min(ranks, GPUS_PER_NODE // apart)) - 1
    inside = neighbours / (ranks - 1)
    return sent * (inside / gpu.nvlink + (1 - inside) / gpu.network) / LINK_EFFICIENCY


def _compute_seconds(model: ModelConfig, layout: TrainerSection, work: Workload, gpu: Gpu) -> float:
    """On the busiest stage. Under context parallelism attention is plain PyTorch in fp32."""
    passes = 4 if layout.recompute == "full" else 3
    linear, attention = _sequence_flops(model, work.context, layout.mtp == "train")
    a_sequence = linear / gpu.flops + attention / (gpu.flops if layout.cp == 1 else gpu.fp32_flops)
    a_rank = passes * a_sequence * work.sequences / layout.world_size / COMPUTE_EFFICIENCY
    return a_rank * _pipeline_skew(model, layout)


@lru_cache
def _sequence_flops(model: ModelConfig, context: int, mtp: bool) -> tuple[float, float]:
    """Of one forward pass: linear layers, attention between tokens."""
    return linear_flops(model, mtp) * context, float(attention_flops(model, context, mtp))


def _pipeline_skew(model: ModelConfig, layout: TrainerSection) -> float:
    """Work of the busiest stage over the mean."""
    parts = stage_layers(model.num_layers, layout.pp, layout.vpp)
    stages = [float(sum(parts[stage :: layout.pp])) for stage in range(layout.pp)]
    stages[-1] += _output_layers(model, layout.mtp == "train")
    return max(stages) * layout.pp / sum(stages)


@lru_cache
def _output_layers(model: ModelConfig, mtp: bool) -> float:
    """How many layers work as much as the output layer, and multi-token prediction where it trains."""
    layers = linear_flops(model) - 2 * model.vocab_size * model.hidden_size
    return (linear_flops(model, mtp) - layers) * model.num_layers / layers


def _offload_seconds(model: ModelConfig, layout: TrainerSection) -> float:
    """The optimizer's state comes to the GPU and goes back."""
    dense, experts = trained_parameters(parameters_on_rank(model, layout, layout.pp // 2), layout)
    entries = dense / dense_replicas(layout) + experts / expert_replicas(layout)
    return entries * 2 * state_bytes(layout) / PCIE_BYTES
