"""Whether a recipe can fit at all, said before anything starts."""

from collections.abc import Iterator

from gagar_mcore.config.load import RecipeError
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.gpus import GPUS
from gagar_mcore.plan.machine import gpu_memory, host_memory
from gagar_mcore.plan.memory import Memory, memory_on_rank, worst_stage
from gagar_mcore.plan.workload import recipe_workload


def check_fit(recipe: Recipe, model: ModelConfig) -> None:
    """Raises RecipeError where a rank takes more than all memory of its GPU even with equal load of experts, or where the ranks
    together hold more weights, gradients and optimizer state than the machine has memory where they run on its CPU."""
    if recipe.cluster.gpu is not None:
        gpu = GPUS[recipe.cluster.gpu]
        _check_gpu(recipe, model, gpu.memory, f"one {gpu.name} (cluster.gpu)")
    elif recipe.trainer.device == "cpu":
        _check_host(recipe, model, host_memory())
    elif (memory := gpu_memory()) is not None:
        _check_gpu(recipe, model, memory, "this machine's GPU")


def _check_gpu(recipe: Recipe, model: ModelConfig, available: float, whose: str) -> None:
    stage, memory = worst_stage(model, recipe.trainer, recipe_workload(recipe), imbalance=1.0)
    if memory.total > available:
        activations = memory.total - memory.weights - memory.gradients - memory.optimizer
        raise RecipeError(
            f"trainer: cannot fit: a rank of pipeline stage {stage} takes {_gb(memory.total)} ({_states(memory)}, activations "
            f"{_gb(activations)}), {whose} has {_gb(available)}; {_mends(recipe)}"
        )


def _check_host(recipe: Recipe, model: ModelConfig, available: float) -> None:
    trainer, work = recipe.trainer, recipe_workload(recipe)
    stages = [memory_on_rank(model, trainer, work, stage) for stage in range(trainer.pp)]
    ranks = trainer.world_size // trainer.pp
    held = ranks * sum(stage.weights + stage.gradients + stage.optimizer + stage.host for stage in stages)
    if held > available:
        raise RecipeError(
            f"trainer: cannot fit: its {trainer.world_size} ranks hold {_gb(held)} of weights, gradients and optimizer state, "
            f"this machine has {_gb(available)}; choose a smaller model, or device: cuda and as many GPUs as gagar plan says"
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
