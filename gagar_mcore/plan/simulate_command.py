"""What `gagar simulate` does."""

from collections.abc import Sequence
from pathlib import Path

from gagar_mcore.config.load import load_recipe
from gagar_mcore.plan.fit_run import fitted
from gagar_mcore.plan.show_simulation import simulation_json, simulation_text
from gagar_mcore.plan.simulate import simulate


def simulate_recipe(name: str, overrides: Sequence[str], *, steps: int, run: Path | None, once: bool, as_json: bool) -> str:
    """What to print. run: whose records give times and rates, before the overrides. Raises RecipeError, RecordError."""
    recipe = load_recipe(name, overrides)
    if run is not None:
        recipe = fitted(recipe, run)
    simulation = simulate(recipe, steps, double=not once)
    return simulation_json(simulation) if as_json else simulation_text(recipe.name, simulation)
