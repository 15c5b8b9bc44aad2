"""Layouts of a number of GPUs: which fit, in the order of their cost, and why the others do not."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.cost import Cost, step_cost
from gagar_mcore.plan.gpus import GPUS_PER_NODE, Gpu, node_gpus
from gagar_mcore.plan.host import HostMemory, worst_host
from gagar_mcore.plan.memory import Memory, worst_stage
from gagar_mcore.plan.workload import Workload
from gagar_mcore.trainer.layout import check_layout

MOST_STAGES = 32
CHUNKS = (1, 2, 4)  # interleaved ones a stage


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits. stage: the pipeline stage that takes most, `memory` on each of its ranks."""

    layout: TrainerSection
    stage: int
    memory: Memory
    cost: Cost


@dataclass(frozen=True, slots=True)
class Search:
    """feasible: cheapest first. refused: how many layouts by reason."""

    feasible: tuple[Candidate, ...]
    refused: Counter[str]


def search_layouts(model: ModelConfig, start: TrainerSection, work: Workload, gpu: Gpu, gpus: int) -> Search:
    """Every layout of `gpus` GPUs, with the fields of `start` that are no part of a layout; recomputation and offloading as far
    as memory needs them."""
    feasible: list[Candidate] = []
    refused: Counter[str] = Counter()
    for layout in _layouts(start, gpus, model):
        try:
            check_layout(layout, model)
            feasible.append(cheapest_fit(model, layout, work, gpu))
        except ValueError as error:
            refused[str(error)] += 1
    feasible.sort(key=lambda candidate: (candidate.cost.total, candidate.memory.total))
    return Search(tuple(feasible), refused)


def cheapest_fit(model: ModelConfig, layout: TrainerSection, work: Workload, gpu: Gpu) -> Candidate:
    """With the recomputation and offloading that cost least. Raises ValueError where none brings the worst stage into memory."""
    if layout.dp > work.sequences:
        raise ValueError(f"trainer.dp: more ranks than the {work.sequences} sequences of a step")
    found = [_least_recomputation(model, layout, work, gpu, offload) for offload in (False, True)]
    candidates = [candidate for candidate in found if isinstance(candidate, Candidate)]
    if not candidates:
        raise ValueError("; offloaded, ".join(dict.fromkeys(map(str, found))))
    return min(candidates, key=lambda candidate: candidate.cost.total)


def _least_recomputation(model: ModelConfig, layout: TrainerSection, work: Workload, gpu: Gpu, offload: bool) -> Candidate | str:
    """With as much recomputation as memory needs; or why all of it is not enough."""
    layout = layout.model_copy(update={"offload_optimizer": offload})
    reason = host_misfit(worst_host(model, layout), layout, gpu)
    if reason is not None:
        return reason
    for recompute in ("none", "selective", "full"):
        variant = layout.model_copy(update={"recompute": recompute})
        stage, memory = worst_stage(model, variant, work)
        reason = gpu_misfit(memory, gpu)
        if reason is None:
            return Candidate(variant, stage, memory, step_cost(model, variant, work, gpu))
    return str(reason)


def gpu_misfit(memory: Memory, gpu: Gpu) -> str | None:
    """Why a GPU cannot hold it, None where it can."""
    if memory.total > gpu.usable_memory:
        return f"memory: more than the {gpu.usable_memory / 1e9:.0f} GB of a GPU that are free for it"
    return None


def host_misfit(host: HostMemory, layout: TrainerSection, gpu: Gpu) -> str | None:
    """Why a node cannot hold it, None where it can."""
    if host.total * node_gpus(layout.world_size) > gpu.usable_node_memory:
        return f"host memory: more than the {gpu.usable_node_memory / 1e9:.0f} GB of a node that are free for it"
    return None


def _layouts(start: TrainerSection, gpus: int, model: ModelConfig) -> Iterator[TrainerSection]:
    """Tensor parallelism stays inside a node; experts are whole or split over as many ranks as TP; a sequence is halved until it
    is short enough."""
    for tp, pp, vpp in product(_divisors(gpus, GPUS_PER_NODE), _divisors(gpus, MOST_STAGES), CHUNKS):
        if gpus % (tp * pp) or (vpp > 1 and (pp == 1 or pp * vpp > model.num_layers)):
            continue
        ranks = gpus // pp
        for cp, ep, etp in product(_powers_of_two(ranks // tp), _divisors(ranks, model.num_experts), sorted({1, tp})):
            if ranks // ep % etp:
                continue
            sizes = {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp, "dp": ranks // (tp * cp)}
            yield start.model_copy(update=sizes)


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def _powers_of_two(number: int) -> list[int]:
    """Those that divide it."""
    return [1 << exponent for exponent in range((number & -number).bit_length())]
