"""Whether a recipe can fit at all, said before anything starts."""

from collections.abc import Iterator

from gagar_mcore.config.load import RecipeError
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.gpus import find_gpu, node_gpus
from gagar_mcore.plan.host import host_on_rank, worst_host
from gagar_mcore.plan.machine import gpu_memory, host_memory
from gagar_mcore.plan.memory import Memory, memory_on_rank, worst_stage
from gagar_mcore.plan.workload import recipe_workload


def check_fit(recipe: Recipe, model: ModelConfig) -> None:
    """Raises RecipeError where a rank takes more than all memory of its GPU even with equal load of experts, where the ranks of a
    node take more than its host has, or where ranks on this machine's CPU together hold more than it has memory."""
    ranks, cluster = recipe.trainer.world_size, recipe.cluster
    if cluster.gpu is not None:
        gpu = find_gpu(cluster.gpu, cluster.node_memory_gb)
        _check_gpu(recipe, model, gpu.memory, f"one {gpu.name} (cluster.gpu)")
        _check_node(recipe, model, node_gpus(ranks), gpu.node_memory, "its host (cluster.node_memory_gb)")
    elif recipe.trainer.device == "cpu":
        _check_host(recipe, model, host_memory())
    elif (memory := gpu_memory()) is not None:
        _check_gpu(recipe, model, memory, "this machine's GPU")
        _check_node(recipe, model, ranks, host_memory(), "this machine")


def _check_gpu(recipe: Recipe, model: ModelConfig, available: float, whose: str) -> None:
    stage, memory = worst_stage(model, recipe.trainer, recipe_workload(recipe), imbalance=1.0)
    if memory.total > available:
        activations = memory.total - memory.weights - memory.gradients - memory.optimizer
        raise RecipeError(
            f"trainer: cannot fit: a rank of pipeline stage {stage} takes {_gb(memory.total)} ({_states(memory)}, activations "
            f"{_gb(activations)}), {whose} has {_gb(available)}; {_mends(recipe)}"
        )


def _check_node(recipe: Recipe, model: ModelConfig, ranks: int, available: float, whose: str) -> None:
    host = worst_host(model, recipe.trainer)
    if ranks * host.total > available:
        raise RecipeError(
            f"trainer: cannot fit: {ranks} ranks of a node take {_gb(ranks * host.total)} of its host's memory (each: optimizer "
            f"{_gb(host.optimizer)}, reference {_gb(host.reference)}, checkpoint {_gb(host.checkpoint)}), {whose} has "
            f"{_gb(available)}; spread it over more ranks (trainer.ep, pp, tp); gagar plan lists layouts that fit"
        )


def _check_host(recipe: Recipe, model: ModelConfig, available: float) -> None:
    trainer, work = recipe.trainer, recipe_workload(recipe)
    ranks, held = trainer.world_size // trainer.pp, 0.0
    for stage in range(trainer.pp):
        memory = memory_on_rank(model, trainer, work, stage)
        held += ranks * (memory.weights + memory.gradients + memory.optimizer + host_on_rank(model, trainer, stage).total)
    if held > available:
        raise RecipeError(
            f"trainer: cannot fit: its {trainer.world_size} ranks hold {_gb(held)} of weights, gradients, optimizer state and "
            f"checkpoint, this machine has {_gb(available)}; choose a smaller model, or device: cuda and as many GPUs as gagar "
            "plan says"
        )


def _states(memory: Memory) -> str:
    return ", ".join(f"{kind} {_gb(getattr(memory, kind))}" for kind in ("weights", "gradients", "optimizer"))


def _mends(recipe: Recipe) -> str:
    return "; ".join(_possible_mends(recipe)) + "; gagar plan lists layouts that fit"


def _possible_mends(recipe: Recipe) -> Iterator[str]:
    trainer = recipe.trainer
    yield "spread it over more ranks (trainer.ep, pp, tp; cp for long sequences)"
    if not trainer.offload_optimizer:
        yield "set trainer.offload_optimizer=true"
    if trainer.recompute != "full":
        yield "set trainer.recompute=full"


def _gb(amount: float) -> str:
    return f"{amount / 1e9:.1f} GB"
