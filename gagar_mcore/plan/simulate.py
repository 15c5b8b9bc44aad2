"""`gagar simulate`: the steps of a recipe on a simulated cluster, through the scheduler that runs the real ones."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.plan.cluster import Cluster, Resource, Sizes, sizes_of
from gagar_mcore.plan.simulated_group import Groups, SimulatedGroup
from gagar_mcore.plan.virtual_time import run_virtually
from gagar_mcore.rollout.breaker import Breaker
from gagar_mcore.rollout.carry import Carry
from gagar_mcore.rollout.history import History, TaskOutcome
from gagar_mcore.rollout.scheduler import Ended, Scheduler
from gagar_mcore.tasks.mix import Draw, Position, Source, TaskMix
from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.question import Problem, Question

KINDS = ("engines", "pods", "testers", "graders")


@dataclass(frozen=True, slots=True)
class Use:
    """Of one kind of resource: how many there are, the share of them at work until the last group was graded, and what a use had
    to wait for one on average."""

    count: int
    busy: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """Means over the steps. `collect_s`: until the last group of a step was graded; `late`: groups whose grading was given up;
    `uses` by kind."""

    steps: int
    collect_s: float
    train_s: float
    sessions: float
    turns: float
    kept: float
    dropped: dict[str, float]
    late: float
    uses: dict[str, Use]

    @property
    def step_s(self) -> float:
        return self.collect_s + self.train_s


@dataclass(frozen=True, slots=True)
class Simulation:
    """`doubled`: seconds of a step where there are twice as many of a kind; empty where that was not asked for."""

    base: Simulated
    doubled: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """The kind whose doubling shortens a step most; where that was not asked, the one that is most at work of those that were
        waited for. "sessions" where no kind shortens it by a hundredth, or none was waited for: then it is the longest sessions
        that a step waits for."""
        if not self.doubled:
            waited = {kind: use.busy for kind, use in self.base.uses.items() if use.waited_s}
            return max(waited, key=waited.__getitem__, default="sessions")
        kind = min(self.doubled, key=lambda kind: self.doubled[kind])
        return kind if self.doubled[kind] < 0.99 * self.base.step_s else "sessions"


def simulate(recipe: Recipe, steps: int, double: bool = True) -> Simulation:
    sizes = sizes_of(recipe)
    base = simulate_steps(recipe, sizes, steps)
    if not double:
        return Simulation(base, {})
    twice = {kind: replace(sizes, **{kind: 2 * getattr(sizes, kind)}) for kind in KINDS}
    return Simulation(base, {kind: simulate_steps(recipe, more, steps).step_s for kind, more in twice.items()})


def simulate_steps(recipe: Recipe, sizes: Sizes, steps: int) -> Simulated:
    return run_virtually(_steps(recipe, Cluster(recipe.simulate, sizes), steps))


async def _steps(recipe: Recipe, cluster: Cluster, steps: int) -> Simulated:
    rollout, schedule = recipe.rollout, recipe.schedule
    scheduler = Scheduler(
        rollout.concurrent_groups, schedule.task_failures, Breaker(schedule.outage_tasks, rollout.outage_wait_s)
    )
    mix = task_mix(recipe)
    history = History(rollout.group_size, schedule.task_failures)
    groups = Groups(recipe, cluster)
    carry = Carry[SimulatedGroup](rollout.max_staleness) if rollout.partial else None
    position: Position = {}
    every: list[Ended[SimulatedGroup]] = []
    for number in range(1, steps + 1):
        if carry:
            await carry.begin(number)
        drawn: list[Draw] = []
        draws = _noted(mix.draws(position, history.forecast), number, drawn)
        most = round(rollout.oversample * rollout.groups_per_step)
        ended = await scheduler.step(groups.run, draws, rollout.groups_per_step, most, carry=carry)
        history.add(_outcome(e) for e in ended)
        position = drawn[-1].after if drawn else position
        every += ended
    if carry:
        await carry.close()
    return _summary(every, cluster, steps, recipe.rollout.group_size)


def _noted(draws: Iterator[Draw], step: int, drawn: list[Draw]) -> Iterator[Draw]:
    for draw in draws:
        drawn.append(replace(draw, step=step))
        yield drawn[-1]


def task_mix(recipe: Recipe) -> TaskMix:
    """Of as many tasks as the sources name, without what is in them."""
    window = 1 if recipe.deterministic else recipe.schedule.lookahead
    mixed = {source.name: source for source in recipe.tasks.mix}
    sources = []
    for name, section in recipe.tasks.sources.items():
        tasks: list[Problem] = [Question(f"t{index}", "", source=name) for index in range(section.count)]
        order = TaskOrder(tasks, recipe.seed)
        own = mixed.get(name)
        sources.append(Source(name, order, own.weight, own.quota, own.priority) if own else Source(name, order))
    return TaskMix(sources, window)


def _outcome(ended: Ended[SimulatedGroup]) -> TaskOutcome:
    group = ended.result
    return TaskOutcome(ended.draw.task.key, group.passed, group.valid, group.turns, ended.failures)


def _summary(ended: list[Ended[SimulatedGroup]], cluster: Cluster, steps: int, members: int) -> Simulated:
    seconds = asyncio.get_running_loop().time()
    dropped = Counter(str(e.result.dropped) for e in ended if not e.result.kept)
    return Simulated(
        steps=steps,
        collect_s=seconds / steps,
        train_s=cluster.section.train.median,
        sessions=len(ended) * members / steps,
        turns=sum(e.result.all_turns for e in ended) / steps,
        kept=sum(e.result.kept for e in ended) / steps,
        dropped={reason: count / steps for reason, count in sorted(dropped.items())},
        late=sum(e.result.late for e in ended) / steps,
        uses={resource.name: _use(resource, seconds) for resource in cluster.resources},
    )


def _use(resource: Resource, seconds: float) -> Use:
    slots = resource.slots
    busy = slots.busy_seconds() / max(seconds * slots.total, 1e-9)
    return Use(slots.total, busy, resource.waited_s / max(1, resource.uses))
