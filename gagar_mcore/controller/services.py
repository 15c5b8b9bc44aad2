"""Everything a run needs alive: sandboxes, engine, trainer, grading, tasks."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gagar_mcore.agent.gate import Gate, GatedEngine
from gagar_mcore.agent.registry import tool_set
from gagar_mcore.agent.renderer import Renderer, load_renderer
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.agents import runner_of
from gagar_mcore.controller.engines import start_engine
from gagar_mcore.controller.pools import Pools, open_pools, session_slots
from gagar_mcore.controller.run import Run
from gagar_mcore.controller.trainer_client import TrainerClient
from gagar_mcore.credit import CreditParams
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.grading.service import GradingService
from gagar_mcore.records.expert_index import ExpertIndex
from gagar_mcore.records.experts import Experts, publish_experts
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import FileSum
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.carry import Carry, Left
from gagar_mcore.rollout.group import Event, FinishedGroup, GroupPipeline, Sampler
from gagar_mcore.rollout.history import History, read_outcomes
from gagar_mcore.rollout.scheduler import Scheduler
from gagar_mcore.rollout.slots import Slots
from gagar_mcore.rollout.staleness import Staleness
from gagar_mcore.tasks.mix import Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.question import Problem
from gagar_mcore.tasks.source import heldout_tasks, training_tasks
from gagar_mcore.verify.answers import AnswerVerifier
from gagar_mcore.verify.judge import JudgeByKind
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox.types import Limits


@dataclass(frozen=True, slots=True)
class RolloutServices:
    """What stage a needs alive."""

    engine: Engine
    sampler: Sampler
    pipeline: GroupPipeline
    scheduler: Scheduler
    mix: TaskMix
    history: History
    heldout: list[Problem]
    staleness: Staleness
    carry: Carry[FinishedGroup] | None
    gate: Gate

    async def rest(self) -> None:
        """Leave the machine to the trainer, perhaps on the same GPU: sessions under way stop before their next turn."""
        self.gate.close()
        await self.engine.release_memory()

    async def load(self, weights: Path, version: int) -> None:
        """Take these weights; sessions under way go on with them."""
        await self.engine.load_weights(weights, version)
        self.staleness.version = version
        self.gate.open()


def sandbox_limits(recipe: Recipe) -> Limits:
    section = recipe.sandbox
    return Limits(section.memory_mb, section.processes, section.file_size_mb, section.disk_mb)


def session_limits(recipe: Recipe) -> SessionLimits:
    r = recipe.rollout
    return SessionLimits(r.max_turns, r.max_new_tokens, r.max_context, r.temperature, r.session_deadline_s, r.overflow)


def own_limits(recipe: Recipe) -> dict[str, SessionLimits]:
    """Of the sources that set any."""
    fields = ("max_turns", "max_new_tokens", "max_context", "temperature")
    own = {s.name: {f: getattr(s, f) for f in fields if getattr(s, f) is not None} for s in recipe.tasks.mix}
    return {name: replace(session_limits(recipe), **changes) for name, changes in own.items() if changes}


def credit_params(recipe: Recipe) -> CreditParams:
    return recipe.method.params()


def build_sampler(
    recipe: Recipe, engine: Engine, pools: Pools, renderer: Renderer, layout: RunLayout | None = None, gate: Gate | None = None
) -> Sampler:
    """layout: of the run that the sessions belong to, where they are trained on."""
    gate = gate or Gate()
    keep = partial(keep_experts, layout) if layout else None
    tools = tool_set(recipe.rollout.tools, renderer.calls, recipe.sandbox.command_timeout_s)
    limits = sandbox_limits(recipe)
    own = SessionRunner(pools.sessions, tools, renderer, session_limits(recipe), limits, keep, gate)
    return Sampler(
        sessions=runner_of(recipe.agent, own, recipe.sandbox.command_timeout_s),
        engine=GatedEngine(engine, gate),
        judge=JudgeByKind(
            Verifier(pools.tests, limits, recipe.verify.timeout_s), AnswerVerifier(pools.tests, limits, recipe.verify.timeout_s)
        ),
        slots=Slots(session_slots(recipe)),
        lockstep=recipe.deterministic,
        submit_unfinished=recipe.rollout.submit_unfinished,
        reuse_identical=recipe.verify.reuse_identical,
        own_limits=own_limits(recipe),
    )


def build_scheduler(recipe: Recipe, history: History, message: Callable[[str], None]) -> Scheduler:
    section = recipe.schedule
    breaker = Breaker(section.outage_tasks, recipe.rollout.outage_wait_s)
    breaker.failures.update(history.failures())
    return Scheduler(recipe.rollout.concurrent_groups, section.task_failures, breaker, message)


def task_mix(recipe: Recipe, tasks: Mapping[str, Sequence[Problem]]) -> TaskMix:
    """tasks: of each source by its name, "" where there is no mix."""
    orders = {name: TaskOrder(some, recipe.seed) for name, some in tasks.items()}
    mixed = [Source(s.name, orders[s.name], s.weight, s.quota, s.priority) for s in recipe.tasks.mix]
    return TaskMix(mixed or [Source("", orders[""])], 1 if recipe.deterministic else recipe.schedule.lookahead)


def known_tasks(run: Run) -> History:
    """What the steps of this run so far say of their tasks."""
    history = History(run.recipe.rollout.group_size, run.recipe.schedule.task_failures)
    for step in range(1, run.next_step):
        history.add(read_outcomes(run.layout, step))
    return history


def open_carry(run: Run, mix: TaskMix) -> Carry[FinishedGroup]:
    """With the groups that the last step left under way."""
    left: list[Left[FinishedGroup]] = [Left(mix.again(c.step, c.index, c.task), begun=c.begun) for c in run.carried]
    return Carry(run.recipe.rollout.max_staleness, left)


def keep_experts(layout: RunLayout, key: SessionKey, experts: Experts | ExpertIndex) -> FileSum:
    return publish_experts(layout.experts(key.step, key.trajectory_id), experts)


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
    run: Run, progress: Callable[[Event], None], message: Callable[[str], None]
) -> AsyncIterator[RolloutServices]:
    """Sandboxes, tasks and the engine with the initial weights, closed together in reverse order of their start."""
    recipe, layout = run.recipe, run.layout
    weights = layout.weights(0)
    async with AsyncExitStack() as stack:
        pools = await stack.enter_async_context(open_pools(recipe, locked=True, message=message))
        message("preparing tasks")
        training = await training_tasks(recipe.tasks, layout.root / "tasks", pools.tests, run.epoch.number)
        heldout = await heldout_tasks(recipe.tasks, layout.root / "tasks", pools.tests, run.epoch.number)
        engine = await start_engine(recipe, layout.logs / "engine.log", weights, 0)
        stack.push_async_callback(engine.close)
        gate = Gate()
        sampler = build_sampler(recipe, engine, pools, load_renderer(weights), layout, gate)
        staleness = Staleness(recipe.rollout.max_staleness)
        pipeline = GroupPipeline(
            layout=layout,
            epoch=run.epoch.number,
            seed=recipe.seed,
            group_size=recipe.rollout.group_size,
            sampler=sampler,
            grading=GradingService.from_section(recipe.grading, credit_params(recipe), pools.tests, sandbox_limits(recipe)),
            credit=credit_params(recipe),
            progress=progress,
            staleness=staleness,
        )
        mix, history = task_mix(recipe, training), known_tasks(run)
        scheduler = build_scheduler(recipe, history, message)
        carry = open_carry(run, mix) if recipe.rollout.partial else None
        if carry:
            stack.push_async_callback(carry.close)
        yield RolloutServices(engine, sampler, pipeline, scheduler, mix, history, heldout, staleness, carry, gate)
