"""Whether this machine has the GPUs that a recipe asks for."""

from gagar_mcore.config.load import RecipeError
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.launcher.gpu import ProbeFailed, look_for_gpus


def gpus_needed(recipe: Recipe) -> int:
    """One for each rank; the engine shares those of the first, unless it is a server that is attached."""
    ranks = recipe.trainer.world_size if recipe.trainer.device == "cuda" else 0
    engine = recipe.engine
    elsewhere = engine.device == "cpu" or (engine.kind == "sglang" and engine.server.attach is not None)
    return max(ranks, 0 if elsewhere else engine.server.tp * engine.server.count)


def missing_gpus(recipe: Recipe) -> str | None:
    """Why the recipe cannot run on this machine's GPUs, and the mend, in one line; None where it can, or needs none."""
    needed = gpus_needed(recipe)
    if not needed:
        return None
    try:
        return look_for_gpus().shortage(needed)
    except ProbeFailed as error:
        return str(error)


def check_machine(recipe: Recipe) -> None:
    """Raises RecipeError."""
    if (reason := missing_gpus(recipe)) is not None:
        fields = [f"{name}.device" for name in ("engine", "trainer") if getattr(recipe, name).device == "cuda"]
        raise RecipeError(f"{', '.join(fields)}: cuda, but {reason}; gagar doctor has more")
