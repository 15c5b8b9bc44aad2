"""What the servers of a recipe are to do."""

from pathlib import Path

from gagar_mcore.config.load import RecipeError
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.models.huggingface import read_config


def policy_serving(recipe: Recipe, weights: Path, version: int) -> Serving:
    """Raises RecipeError where `weights` hold no model that the recipe describes."""
    try:
        model = recipe.model.of(read_config(weights))
    except ValueError as error:
        raise RecipeError(str(error)) from error
    return Serving(
        "policy",
        weights,
        version,
        model,
        recipe.rollout.max_context,
        deterministic=recipe.deterministic,
        record_experts=recipe.trainer.routing == "replay",
    )


def grader_serving(recipe: Recipe) -> Serving:
    """Raises RecipeError."""
    section = recipe.grading
    if section.model is None:
        raise RecipeError("grading.model: required to serve a grader; name a directory in Hugging Face format")
    weights = Path(section.model)
    try:
        model = read_config(weights)
    except ValueError as error:
        raise RecipeError(f"grading.model: {error}") from error
    return Serving("grader", weights, 0, model, section.max_context or model.max_positions)
