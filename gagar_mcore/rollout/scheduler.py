"""The scheduler of one step: which groups are begun, when, and what becomes of those that the infrastructure failed."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from gagar_mcore.rollout.breaker import LONGEST_PAUSE_S, Breaker
from gagar_mcore.rollout.carry import Carry, Left
from gagar_mcore.rollout.garbage import full_collections_deferred
from gagar_mcore.rollout.pending import Pending
from gagar_mcore.rollout.slots import Rank
from gagar_mcore.tasks.mix import Draw

FAILED = "too_few_valid"


class Result(Protocol):
    """What became of a group. `dropped`: why it is not kept; `FAILED` where the infrastructure left too little of it."""

    @property
    def kept(self) -> bool: ...
    @property
    def dropped(self) -> str | None: ...


AnyResult = TypeVar("AnyResult", bound=Result)
Run = Callable[[Draw, Rank], Awaitable[AnyResult]]
Take = Callable[[AnyResult], Awaitable[AnyResult]]
Progress = Callable[[int, Counter[str]], None]


@dataclass(frozen=True, slots=True)
class Ended(Generic[AnyResult]):
    """A group that a step sampled. `failures`: what its task is charged with by now."""

    draw: Draw
    result: AnyResult
    failures: int


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Runs the groups of one step after the other, at most `concurrent` of them at once. All time is that of the event loop.

    A group that fails is begun again after a pause, unless its task has failed `most_failures` times: then it is dropped, so that
    another takes its place. While `breaker` sees an outage, nothing is begun but its trials, first of what has not failed in it;
    a group may be drawn for that."""

    concurrent: int
    most_failures: int
    breaker: Breaker
    message: Callable[[str], None] = field(default=lambda text: None)

    async def step(
        self,
        run: Run[AnyResult],
        draws: Iterator[Draw],
        wanted: int,
        most: int,
        progress: Progress = lambda kept, dropped: None,
        take: Take[AnyResult] | None = None,
        carry: Carry[AnyResult] | None = None,
    ) -> list[Ended[AnyResult]]:
        """Begin groups until `wanted` are kept or `most` were tried, and return them in the order of `draws`. `take` is given
        each result that counts, one after the other, and returns what is kept of it.

        Another draw is taken only when fewer than `wanted` groups are kept or under way: which groups a step has depends on their
        outcomes, never on which ended first. Among those drawn, `rank` decides. An error of `run` ends all and is raised.

        With `carry` as many groups are under way as may be at once; those that are left when `wanted` are kept stay there, and
        those that an earlier step left there go on first."""
        step = _Step(self, run, draws, wanted, most, progress, take, carry)
        with full_collections_deferred():
            try:
                await step.complete()
                step.leave()
            finally:
                await step.cancel()
        return [step.ended[place] for place in sorted(step.ended)]


def rank(draw: Draw) -> Rank:
    """Sources by their priority, then earlier steps, then long sessions before short ones, then draws in order."""
    return (-draw.source.priority, draw.step, -draw.length, draw.index)


class _Step(Generic[AnyResult]):
    def __init__(
        self,
        scheduler: Scheduler,
        run: Run[AnyResult],
        draws: Iterator[Draw],
        wanted: int,
        most: int,
        progress: Progress,
        take: Take[AnyResult] | None,
        carry: Carry[AnyResult] | None,
    ) -> None:
        self._scheduler, self._run, self._draws = scheduler, run, draws
        self._wanted, self._most, self._progress = wanted, most, progress
        self._take, self._carry = take, carry
        self._pending = Pending()
        self._running: dict[asyncio.Future[AnyResult], Draw] = {}
        self._at_work: Counter[str] = Counter()  # groups of each source
        self._done: deque[asyncio.Future[AnyResult]] = deque()
        self._changed = asyncio.Event()
        self._drawn = self._kept = 0
        self._dropped: Counter[str] = Counter()
        self._in_vain: set[Rank] = set()  # of what is pending, what failed in the outage that lasts
        self._probed: set[int] = set()  # outages in which a group was drawn to see whether they are any
        self.ended: dict[tuple[int, int], Ended[AnyResult]] = {}
        self._begun: dict[Rank, int] = {}  # the step in which each was, where there is a carry
        for left in carry.take() if carry else ():
            if left.begun is not None:
                self._begun[rank(left.draw)] = left.begun
            if left.task is None:
                self._pending.add(left.draw, rank(left.draw))
            else:
                self._watch(left.task, left.draw)

    async def complete(self) -> None:
        while not self._is_full:
            self._draw()
            pause_s = self._begin()
            if not self._running and not self._pending:
                return
            await self._wait(pause_s)
            while self._done and not self._is_full:
                await self._settle(self._done.popleft())
            self._progress(self._kept, self._dropped)

    @property
    def _is_full(self) -> bool:
        """Whether what is under way can wait for the next step."""
        return self._carry is not None and self._kept >= self._wanted

    def leave(self) -> None:
        """To the next step, where there is a carry."""
        if self._carry is None:
            return
        for task, draw in self._running.items():
            task.remove_done_callback(self._on_done)
            self._carry.put(Left(draw, task, self._begun[rank(draw)]))
        self._running = {}
        for draw in self._pending.drain():
            self._carry.put(Left(draw, begun=self._begun.get(rank(draw))))

    async def cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _draw(self) -> None:
        while self._drawn < self._most and (self._wants_more() or self._wants_probe()):
            draw = next(self._draws, None)
            if draw is None:
                return
            self._drawn += 1
            self._pending.add(draw, rank(draw))

    def _wants_more(self) -> bool:
        if self._carry is None:
            return self._drawn < self._wanted + self._dropped.total()
        return len(self._running) + len(self._pending) < self._scheduler.concurrent

    def _wants_probe(self) -> bool:
        """Once an outage: whether nothing is left that has not failed in it. Only another task can tell then if it is the tasks.
        Probes take the places of the groups that are then dropped, so that few are too many."""
        outage, dropped = self._scheduler.breaker.outages, self._dropped[FAILED]
        if self._running or not self._in_vain or len(self._in_vain) < len(self._pending) or outage in self._probed:
            return False
        if len(self._probed) - dropped >= self._scheduler.most_failures - 1:
            return False
        self._probed.add(outage)
        return True

    def _begin(self) -> float | None:
        """Whatever may be begun. For how long the breaker holds back what is left; None where it does not."""
        breaker = self._scheduler.breaker
        self._pending.release(self._now())
        while len(self._running) < self._scheduler.concurrent and self._pending:
            if (pause_s := breaker.wait_s()) > 0:
                return pause_s
            draw = self._pending.pop(self._at_work)
            if draw is None:
                break
            breaker.begun()
            self._in_vain.discard(rank(draw))
            if self._carry:
                self._begun.setdefault(rank(draw), self._carry.step)
            self._watch(asyncio.ensure_future(self._run(draw, rank(draw))), draw)
        return None

    def _watch(self, task: asyncio.Future[AnyResult], draw: Draw) -> None:
        self._at_work[draw.source.name] += 1
        self._running[task] = draw
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Future[AnyResult]) -> None:
        self._done.append(task)
        self._changed.set()

    async def _wait(self, pause_s: float | None) -> None:
        """Until a group ends, or a pause is over."""
        pauses = (pause_s, self._pending.wait_s(self._now()))
        due = min((pause for pause in pauses if pause is not None), default=None)
        timer = None if due is None else asyncio.get_running_loop().call_later(due, self._changed.set)
        await self._changed.wait()
        self._changed.clear()
        if timer:
            timer.cancel()

    async def _settle(self, task: asyncio.Future[AnyResult]) -> None:
        draw = self._running.pop(task)
        self._at_work[draw.source.name] -= 1
        result = task.result()
        breaker, name = self._scheduler.breaker, draw.task.key
        if result.dropped == FAILED:
            await self._settle_failed(draw, result)
            return
        if breaker.is_open:
            self._scheduler.message("the outage is over: groups are begun again")
        self._in_vain.clear()
        breaker.succeeded(name)
        await self._end(draw, result)

    async def _settle_failed(self, draw: Draw, result: AnyResult) -> None:
        breaker, name, message = self._scheduler.breaker, draw.task.key, self._scheduler.message
        before = breaker.is_open
        breaker.failed(name)
        if breaker.is_open and not before:
            message("paused: sandboxes or the engine are out, several tasks failed one after the other; trying again")
        failures = breaker.failures[name]
        if breaker.given_up or failures >= self._scheduler.most_failures:
            if failures >= self._scheduler.most_failures:
                message(f"task {name} is set aside: the infrastructure failed {failures} of its groups one after the other")
            await self._end(draw, result)
        else:
            self._add_again(draw, self._now() + min(2.0 ** max(0, failures - 1), LONGEST_PAUSE_S))

    def _add_again(self, draw: Draw, when_s: float) -> None:
        """While an outage lasts, those that failed in it are tried after all others."""
        place = rank(draw)
        if self._scheduler.breaker.is_open:
            self._in_vain.add(place)
            place = (inf, when_s, *place)
        self._pending.add_later(draw, place, when_s)

    async def _end(self, draw: Draw, result: AnyResult) -> None:
        if self._take is not None:
            result = await self._take(result)
        self.ended[draw.step, draw.index] = Ended(draw, result, self._scheduler.breaker.failures[draw.task.key])
        self._kept += result.kept
        self._dropped.update([] if result.kept else [str(result.dropped)])

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
