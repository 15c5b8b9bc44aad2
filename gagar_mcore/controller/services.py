"""Everything a run needs alive: sandboxes, engine, trainer, grading, tasks."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.agent.registry import tool_set
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.session import SessionLimits, SessionRunner
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.run import Run
from gagar_mcore.controller.trainer_client import TrainerClient
from gagar_mcore.credit import CreditParams
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.grading.service import GradingService
from gagar_mcore.rollout.group import Event, GroupPipeline, Sampler
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.source import heldout_tasks, training_tasks
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import LocalPool
from gagar_sandbox.types import Limits, SandboxPool


@dataclass(frozen=True, slots=True)
class RolloutServices:
    """What stage a needs alive."""

    engine: Engine
    sampler: Sampler
    pipeline: GroupPipeline
    order: TaskOrder
    heldout: list[Task]


def sandbox_limits(recipe: Recipe) -> Limits:
    section = recipe.sandbox
    return Limits(section.memory_mb, section.processes, section.file_size_mb, section.disk_mb)


def session_limits(recipe: Recipe) -> SessionLimits:
    r = recipe.rollout
    return SessionLimits(r.max_turns, r.max_new_tokens, r.max_context, r.temperature, r.session_deadline_s)


def credit_params(recipe: Recipe) -> CreditParams:
    return recipe.method.params()


def build_sampler(recipe: Recipe, engine: Engine, pool: SandboxPool, renderer: Renderer) -> Sampler:
    tools = tool_set(recipe.rollout.tools, recipe.sandbox.command_timeout_s)
    runner = SessionRunner(pool, tools, renderer, session_limits(recipe), sandbox_limits(recipe))
    return Sampler(
        sessions=runner,
        engine=engine,
        verifier=Verifier(pool, sandbox_limits(recipe), recipe.verify.timeout_s),
        lockstep=recipe.deterministic,
        submit_unfinished=recipe.rollout.submit_unfinished,
        reuse_identical=recipe.verify.reuse_identical,
    )


@asynccontextmanager
async def start_trainer(run: Run) -> AsyncIterator[TrainerClient]:
    """The trainer of this run, at work on the batches that its newest checkpoint does not cover."""
    trainer = TrainerClient(run.layout, run.recipe, run.epoch.number)
    await trainer.start()
    try:
        yield trainer
    finally:
        await trainer.stop()


@asynccontextmanager
async def start_rollout(
    run: Run, weights: Path, version: int, progress: Callable[[Event], None], message: Callable[[str], None]
) -> AsyncIterator[RolloutServices]:
    """Sandboxes, tasks and the engine with `weights`, closed together in reverse order of their start."""
    recipe, layout = run.recipe, run.layout
    async with AsyncExitStack() as stack:
        pool = LocalPool(recipe.sandbox.concurrency)
        stack.push_async_callback(pool.close)
        message("preparing tasks")
        training = await training_tasks(recipe.tasks, layout.root / "tasks", pool, run.epoch.number)
        heldout = await heldout_tasks(recipe.tasks, layout.root / "tasks", pool, run.epoch.number)
        engine = await start_embedded(
            weights,
            version,
            recipe.engine,
            layout.logs / "engine.log",
            max_context=recipe.rollout.max_context,
            deterministic=recipe.deterministic,
        )
        stack.push_async_callback(engine.close)
        sampler = build_sampler(recipe, engine, pool, Renderer.load(weights))
        pipeline = GroupPipeline(
            layout=layout,
            epoch=run.epoch.number,
            seed=recipe.seed,
            group_size=recipe.rollout.group_size,
            sampler=sampler,
            grading=GradingService.from_section(recipe.grading, credit_params(recipe)),
            credit=credit_params(recipe),
            progress=progress,
        )
        yield RolloutServices(engine, sampler, pipeline, TaskOrder(training, recipe.seed), heldout)
