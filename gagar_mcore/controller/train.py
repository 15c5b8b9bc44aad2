"""The step loop: collect, publish the batch, take the new weights, evaluate, log."""

import time

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.bookkeeping import Bookkeeper
from gagar_mcore.controller.progress import StepProgress
from gagar_mcore.controller.run import Run, open_run
from gagar_mcore.controller.services import RolloutServices, start_rollout, start_trainer
from gagar_mcore.controller.trainer_client import TrainerClient
from gagar_mcore.evals.cleanliness import is_clean
from gagar_mcore.evals.evaluate import evaluate
from gagar_mcore.records.epochs import min_batch_epoch, read_epochs
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import publish_json, set_aside_stale
from gagar_mcore.rollout.collect import Collection, collect
from gagar_mcore.rollout.history import publish_outcomes
from gagar_mcore.rollout.metrics import collection_metrics
from gagar_mcore.rollout.step_batch import StepBatch
from gagar_mcore.tasks.mix import Position
from gagar_mcore.tracking.console import Console


async def train(recipe: Recipe, resume: bool, console: Console) -> None:
    """Run the recipe to its last step. After a kill at any moment `resume` goes on: what is published is not made again."""
    with open_run(recipe, resume) as run, Bookkeeper(run, console) as books:
        progress = StepProgress(console, recipe.rollout)
        async with start_trainer(run) as trainer, start_rollout(run, progress.event, console.message) as services:
            await evaluate_if_due(run, services, 0, console)
            await services.rest()
            await take_weights(run, services, trainer, run.next_step - 1, console)
            books.log_through(run.next_step - 1)
            position = run.position
            for step in range(run.next_step, recipe.train.steps + 1):
                await books.wait_for_disk()
                with open_batch(run, step) as batch:
                    collection = await collect_step(run, services, step, position, batch, progress)
                    await services.rest()  # the trainer has work from here on
                    position = await publish_batch(run, services, collection, batch)
                await take_weights(run, services, trainer, step, console)
                books.log_through(step)
                books.tidy(step, services.carry.oldest if services.carry else None)
            await trainer.finish()


async def rollout(recipe: Recipe, console: Console) -> Collection:
    """Stage a alone: collect the next step with the initial weights and publish its batch, which `train --resume` applies."""
    with open_run(recipe, resume=False) as run:
        progress = StepProgress(console, recipe.rollout)
        async with start_rollout(run, progress.event, console.message) as services:
            with open_batch(run, 1) as batch:
                collection = await collect_step(run, services, 1, {}, batch, progress)
                await publish_batch(run, services, collection, batch)
        return collection


def open_batch(run: Run, step: int) -> StepBatch:
    """The batch of the step to come."""
    set_aside_stale(run.layout.batch(step), "batch", min_batch_epoch(read_epochs(run.layout), step))
    return StepBatch(run.layout, step, is_clean, in_order=run.recipe.deterministic)


async def collect_step(
    run: Run, services: RolloutServices, step: int, position: Position, batch: StepBatch, progress: StepProgress
) -> Collection:
    """Sample, grade and credit the groups of one step, and publish what it says in numbers, and of its tasks."""
    started, busy_before = time.monotonic(), services.sampler.slots.busy_seconds()
    progress.begin()
    rollout = run.recipe.rollout
    expired = await services.carry.begin(step) if services.carry else 0
    collection = await collect(
        services.scheduler,
        services.pipeline,
        services.mix,
        services.history,
        step,
        position,
        wanted=rollout.groups_per_step,
        most=round(rollout.oversample * rollout.groups_per_step),
        take=batch.take,
        carry=services.carry,
        progress=progress.groups,
    )
    publish_outcomes(run.layout, step, collection.outcomes, run.epoch.number)
    services.history.add(collection.outcomes)
    seconds = time.monotonic() - started
    metrics = collection_metrics(collection) | {
        "rollout/carried": len(services.carry.carried()) if services.carry else 0,
        "rollout/expired": expired,
        "time/collect": seconds,
        "schedule/idle_slots": services.sampler.slots.idle_share(busy_before, seconds),
        "schedule/outages": services.scheduler.breaker.outages,
        "schedule/set_aside": len(services.history.set_aside()),
        **services.pipeline.grading.tally.take(),
    }
    publish_json(run.layout.step_metrics(step, "collect"), metrics, run.epoch.number)
    return collection


async def publish_batch(run: Run, services: RolloutServices, collection: Collection, batch: StepBatch) -> Position:
    """Hand the step's batch to the trainer; returns the next data position."""
    position = collection.next_position
    meta = {
        "step": collection.step,
        "next_position": {source: to_plain(place) for source, place in position.items()},
        "carried": [to_plain(carried) for carried in services.carry.carried()] if services.carry else [],
    }
    await batch.publish(collection.kept, run.recipe.trainer.loss.aggregation, meta, run.epoch.number, run.fence)
    return position


async def take_weights(run: Run, services: RolloutServices, trainer: TrainerClient, version: int, console: Console) -> None:
    """Wait for the trainer to come to `version`, load these weights into the engine, and evaluate them when due."""
    console.stage("train", 0, 1)
    weights = await trainer.weights(version)
    started = time.monotonic()
    await services.load(weights, version)
    publish_json(run.layout.step_metrics(version, "load"), {"time/load": time.monotonic() - started}, run.epoch.number)
    await evaluate_if_due(run, services, version, console)


async def evaluate_if_due(run: Run, services: RolloutServices, version: int, console: Console) -> None:
    """Evaluate the first and the last weights, and every `train.eval_every`-th in between."""
    recipe, tasks = run.recipe, services.heldout
    every = recipe.train.eval_every
    due = version in (0, recipe.train.steps) or (every > 0 and version % every == 0)
    if not due or not tasks:
        return
    done = iter(range(1, len(tasks) + 1))
    await evaluate(
        run.layout,
        services.sampler,
        tasks,
        version,
        samples=recipe.train.eval_samples,
        seed=recipe.seed,
        epoch=run.epoch.number,
        concurrent=recipe.rollout.concurrent_groups,
        progress=lambda: console.stage("evaluate", next(done), len(tasks)),
    )
