"""What `gagar train` and `gagar rollout` do."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.machine import check_machine, missing_gpus
from gagar_mcore.controller.preflight import preflight
from gagar_mcore.controller.run import check_output
from gagar_mcore.controller.train import rollout, train
from gagar_mcore.tracking.console import Console
from gagar_mcore.viewer.headline import terminal_summary


def plan(name: str, overrides: Sequence[str], resume: bool) -> str:
    """What a run of the recipe would be, once everything about it has been checked; it may be meant for another machine."""
    recipe = load_recipe(name, overrides)
    model = preflight(recipe)
    check_output(recipe, resume)
    t, r = recipe.trainer, recipe.rollout
    missing = missing_gpus(recipe)
    lines = {
        "recipe": f"{recipe.name}, method {recipe.method.name}, seed {recipe.seed}",
        "model": f"{model.family}, {model.num_layers} layers, hidden {model.hidden_size}, {model.num_experts} experts",
        "rollout": f"{r.groups_per_step} groups of {r.group_size}, at most {r.max_turns} turns and {r.max_context} tokens",
        "layout": f"{t.world_size} ranks on {t.device}: TP {t.tp}, PP {t.pp}, CP {t.cp}, EP {t.ep}, DP {t.dp}",
        "loss": f"{t.loss.name}, learning rate {t.optimizer.lr}",
        "steps": f"{recipe.train.steps}, a checkpoint every {recipe.train.checkpoint_every}",
        "output": recipe.output,
        **({"machine": f"not this one: {missing}"} if missing else {}),
    }
    return "\n".join(f"{name:8} {value}" for name, value in lines.items())


def run_training(name: str, overrides: Sequence[str], resume: bool) -> None:
    recipe = load_recipe(name, overrides)
    preflight(recipe)
    check_machine(recipe)
    with console_of(recipe) as console:
        asyncio.run(train(recipe, resume, console))
    print(terminal_summary(Path(recipe.output)))


def run_rollout(name: str, overrides: Sequence[str]) -> None:
    recipe = load_recipe(name, overrides)
    preflight(recipe)
    check_machine(recipe)
    with console_of(recipe) as console:
        collection = asyncio.run(rollout(recipe, console))
    kept, dropped = len(collection.kept), collection.dropped()
    reasons = f" {dict(dropped)}" if dropped else ""
    print(f"{kept} groups kept, {dropped.total()} dropped{reasons}; batch in {recipe.output}")


def console_of(recipe: Recipe) -> Console:
    return Console(f"gagar {recipe.name} · {recipe.method.name}", recipe.train.steps)
