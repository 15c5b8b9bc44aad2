"""What `gagar plan` does."""

from collections.abc import Sequence

from gagar_mcore.plan.plan import make_plan
from gagar_mcore.plan.show import plan_json, print_plan
from gagar_mcore.plan.source import read_source, recipe_model


def plan_recipe(
    name: str,
    overrides: Sequence[str],
    *,
    gpus: int | None,
    gpu: str | None,
    context: int | None,
    mean: bool,
    as_json: bool,
) -> bool:
    """Print the plan of a recipe or of a preset; whether it fits. Raises RecipeError."""
    recipe, fixed = read_source(name, overrides)
    plan = make_plan(recipe, recipe_model(recipe), fixed=fixed, gpus=gpus, gpu=gpu, context=context, mean=mean)
    if as_json:
        print(plan_json(plan))
    else:
        print_plan(plan)
    return plan.fits
