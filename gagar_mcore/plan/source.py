"""What there is to plan: a recipe, or a model by its preset's name alone."""

from collections.abc import Sequence
from pathlib import Path

from gagar_mcore.config.load import RecipeError, build_recipe, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.shipped import shipped_checkpoint, shipped_recipe, shipped_recipe_names
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.presets import PRESETS, preset

SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def read_source(name: str, overrides: Sequence[str]) -> tuple[Recipe, bool]:
    """The recipe `name`, or one around the preset of that name, and whether it fixes a layout: a recipe does, a preset where an
    override names one of `SIZES`. Raises RecipeError."""
    if Path(name).is_file() or shipped_recipe(name) is not None:
        return load_recipe(name, overrides), True
    if name not in PRESETS:
        known = ", ".join((*shipped_recipe_names(), *PRESETS))
        raise RecipeError(f"{name}: no such file, and neither a shipped recipe nor a preset; there are: {known}")
    fixed = any(override.startswith(tuple(f"trainer.{size}=" for size in SIZES)) for override in overrides)
    return build_recipe(_around(name), overrides, name), fixed


def recipe_model(recipe: Recipe) -> ModelConfig:
    """Sizes of `model.init` where it is at hand, else of `model.preset`. Raises RecipeError."""
    init = Path(recipe.model.init)
    directory = init if (init / "config.json").is_file() else shipped_checkpoint(recipe.model.init)
    try:
        if directory is not None:
            return recipe.model.of(read_config(directory))
        if recipe.model.preset is not None:
            return preset(recipe.model.preset)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    raise RecipeError(
        f"model.init: {init}: no directory with a config.json, and no shipped checkpoint of that name; set model.preset to plan "
        "without it"
    )


def _around(name: str) -> dict[str, object]:
    """16,384 tokens a GPU in bf16, and 32,768 a sequence, as the published layouts of such models have."""
    return {
        "name": name,
        "output": f"runs/{name}",
        "model": {"preset": name, "init": name},
        "rollout": {"max_context": min(32768, PRESETS[name].max_positions)},
        "trainer": {"device": "cuda", "tp": 1, "ep": 1, "precision": "bf16", "recompute": "full", "tokens_per_microbatch": 16384},
    }
