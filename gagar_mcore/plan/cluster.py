"""A simulated cluster: what sessions wait for, as slots that are held for drawn times on the clock of the event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.simulate import SimulateSection, SpreadSection
from gagar_mcore.plan.latency import Latency
from gagar_mcore.rollout.slots import FIRST, Rank, Slots

TESTERS = 64  # where the recipe leaves them to the machine that runs it


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many requests the engines take at once, and how many sandboxes, test runs and gradings there may be."""

    engines: int
    pods: int
    testers: int
    graders: int


class Resource:
    """So many things of a kind; `waited_s` is what all who used one have waited for it."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.slots = Slots(count)
        self.waited_s = 0.0
        self.uses = 0

    @property
    def load(self) -> float:
        return 1.0 - self.slots.free / self.slots.total

    async def use(self, seconds: float, crowding: float = 0.0) -> None:
        """crowding: how much longer it takes where all are in use, as a share of `seconds`."""
        async with self.hold():
            await asyncio.sleep(seconds * (1.0 + crowding * self.load))

    @asynccontextmanager
    async def hold(self, rank: Rank = FIRST) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self.slots.hold(1, rank):
            self.waited_s += loop.time() - asked
            self.uses += 1
            yield


class Cluster:
    def __init__(self, section: SimulateSection, sizes: Sizes) -> None:
        self.section = section
        self.engines = Resource("engines", sizes.engines)
        self.pods = Resource("pods", sizes.pods)
        self.testers = Resource("testers", sizes.testers)
        self.graders = Resource("graders", sizes.graders)

    @property
    def resources(self) -> tuple[Resource, ...]:
        return self.engines, self.pods, self.testers, self.graders


def draw(what: SpreadSection, rng: Random) -> float:
    return Latency(what.median, what.spread).draw(rng)


def sizes_of(recipe: Recipe) -> Sizes:
    simulated = recipe.simulate
    members = recipe.rollout.concurrent_groups * recipe.rollout.group_size
    return Sizes(
        engines=simulated.engines * (simulated.engine_slots or recipe.engine.max_batch),
        pods=simulated.pods or recipe.sandbox.concurrency or members,
        testers=simulated.testers or recipe.verify.concurrency or TESTERS,
        graders=simulated.graders or recipe.grading.concurrency,
    )
