"""One group in a simulated cluster: sessions in pods, turn by turn, their tests, and the grading of a mixed group."""

import asyncio
import math
from dataclasses import dataclass
from random import Random

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.tasks import MixedSource
from gagar_mcore.plan.cluster import Cluster, draw
from gagar_mcore.randomness import python_rng
from gagar_mcore.rollout.scheduler import FAILED
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """For a scheduler. turns: of its longest session; late: its grading came too late."""

    passed: int
    valid: int
    turns: int
    all_turns: int
    dropped: str | None
    late: bool

    @property
    def kept(self) -> bool:
        return self.dropped is None


@dataclass(frozen=True, slots=True)
class _Session:
    turns: int
    passed: bool
    valid: bool


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the sessions of one task are like. turns: their median, and `spread` among members. A question needs neither a sandbox
    nor a grading."""

    rate: float
    turns: float
    spread: float
    most_turns: int
    question: bool


@dataclass(frozen=True, slots=True)
class Groups:
    """Runs groups of a recipe. What a session or a task is like does not depend on the cluster, so that clusters compare."""

    recipe: Recipe
    cluster: Cluster

    async def run(self, drawn: Draw, rank: Rank) -> SimulatedGroup:
        seed = self.recipe.seed
        place = (drawn.source.name, drawn.after[drawn.source.name].begun)
        kind = self._kind(drawn)
        members = [python_rng(seed, "simulated_session", *place, n) for n in range(self.recipe.rollout.group_size)]
        sessions = await asyncio.gather(*(self._session(kind, rank, rng) for rng in members))
        valid = [s for s in sessions if s.valid]
        passed = sum(s.passed for s in valid)
        dropped = _dropped(passed, len(valid), self.recipe.method.min_valid)
        graded = dropped is None and self.recipe.grading.grader != "none" and not kind.question
        late = graded and not await self._graded(python_rng(seed, "simulated_grading", *place))
        all_turns = sum(s.turns for s in sessions)
        return SimulatedGroup(passed, len(valid), max(s.turns for s in sessions), all_turns, dropped, late)

    def _kind(self, drawn: Draw) -> _Kind:
        section, source = self.recipe.simulate, self.recipe.tasks.sources[drawn.source.name]
        rng = python_rng(self.recipe.seed, "simulated_task", drawn.task.key)
        rate = rng.betavariate(section.pass_alpha, section.pass_beta)
        if source.source == "questions":
            return _Kind(rate, 1.0, 0.0, 1, True)
        turns = section.turns.median * math.exp(rng.gauss(0.0, section.turns.spread * math.sqrt(section.task_share)))
        own = source.max_turns if isinstance(source, MixedSource) else None
        spread = section.turns.spread * math.sqrt(1.0 - section.task_share)
        return _Kind(rate, turns, spread, own or self.recipe.rollout.max_turns, False)

    async def _session(self, kind: _Kind, rank: Rank, rng: Random) -> _Session:
        cluster, section = self.cluster, self.recipe.simulate
        wanted = max(1, round(kind.turns * math.exp(rng.gauss(0.0, kind.spread))))
        turns = min(wanted, kind.most_turns)
        lost_after = rng.randrange(turns) if rng.random() < section.fault else None
        async with cluster.pods.hold(rank):
            await asyncio.sleep(0.0 if kind.question else draw(section.start, rng))
            for turn in range(turns):
                await cluster.engines.use(draw(section.turn, rng), section.crowding)
                if turn == lost_after:
                    return _Session(turn, False, False)
                command = 0.0 if kind.question else draw(section.command, rng)
                await asyncio.sleep(min(command, self.recipe.sandbox.command_timeout_s))
        if wanted > turns and not self.recipe.rollout.submit_unfinished:
            return _Session(turns, False, True)
        if not kind.question:
            await cluster.testers.use(min(draw(section.test, rng), self.recipe.verify.timeout_s))
        return _Session(turns, rng.random() < kind.rate, True)

    async def _graded(self, rng: Random) -> bool:
        """Whether that was in time: past its deadline a grading is given up."""
        try:
            async with asyncio.timeout(self.recipe.grading.deadline_s):
                await self.cluster.graders.use(draw(self.recipe.simulate.grade, rng))
        except TimeoutError:
            return False
        return True


def _dropped(passed: int, valid: int, min_valid: int) -> str | None:
    if valid < min_valid:
        return FAILED
    return {0: "all_fail", valid: "all_pass"}.get(passed)
