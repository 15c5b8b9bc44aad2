"""Pass rate and clean share of a checkpoint on held-back tasks."""

from pathlib import Path

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.engines import start_engine
from gagar_mcore.controller.services import build_sampler, open_pools
from gagar_mcore.evals.evaluate import evaluate
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.tasks.source import heldout_tasks


async def evaluate_checkpoint(recipe: Recipe, layout: RunLayout, checkpoint: Path, step: int) -> dict[str, float]:
    """Rates over `train.eval_samples` sessions of each held-back task, recorded as the run's evaluation of version `step`."""
    async with open_pools(recipe) as pools:
        tasks = await heldout_tasks(recipe.tasks, layout.root / "tasks", pools.tests, epoch=0)
        engine = await start_engine(recipe, layout.logs / "engine.log", checkpoint, 0)
        try:
            sampler = build_sampler(recipe, engine, pools, load_renderer(checkpoint))
            samples, concurrent = recipe.train.eval_samples, recipe.rollout.concurrent_groups
            return await evaluate(layout, sampler, tasks, step, samples, recipe.seed, epoch=0, concurrent=concurrent)
        finally:
            await engine.close()
