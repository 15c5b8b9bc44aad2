"""Tasks of several sources, mixed by weight; where each source stands is data, from which a run goes on."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gagar_mcore.tasks.order import TaskOrder
from gagar_mcore.tasks.question import Problem


@dataclass(frozen=True, slots=True)
class Source:
    """Where tasks come from. `weight` is its share of the groups, beside the others' weights; at most `quota` of its groups are
    at work at once (None: any number); sources of a higher `priority` go first."""

    name: str
    order: TaskOrder
    weight: float = 1.0
    quota: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """How far a source has come: every position below `start` is taken, and of those from there on `taken`. `begun` groups were
    made of them; the other positions were passed over."""

    start: int = 0
    taken: tuple[int, ...] = ()
    begun: int = 0

    def open(self, window: int) -> list[int]:
        """The positions that are not taken, of the `window` from `start` on."""
        return [position for position in range(self.start, self.start + window) if position not in self.taken]

    def take(self, positions: Collection[int]) -> "Place":
        start, taken = self.start, {*self.taken, *positions}
        while start in taken:
            start += 1
        return replace(self, start=start, taken=tuple(sorted(p for p in taken if p > start)))


Position = Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of a task beforehand. `usable`: False where it is to be passed over; `mixed`: the chance that a group of it
    has mixed outcomes; `length`: what its sessions take, in any unit."""

    usable: bool = True
    mixed: float = 1.0
    length: float = 0.0


NOTHING_KNOWN = Forecast()


@dataclass(frozen=True, slots=True)
class Draw:
    """The task of group `index` of `step`. `after` is the data position with this draw and all before it done."""

    index: int
    source: Source
    task: Problem
    after: Position
    length: float = 0.0
    step: int = 0


class TaskMix:
    """Draws are a function of the data position and of the forecasts. `window`: how many positions of a source are looked at for
    the task that is likeliest to have mixed outcomes; with 1, tasks are drawn in order. No position waits for more draws than its
    window has."""

    def __init__(self, sources: Sequence[Source], window: int = 1) -> None:
        self.sources = tuple(sources)
        self._window = window

    def draws(self, position: Position, forecast: Callable[[Problem], Forecast] = lambda task: NOTHING_KNOWN) -> Iterator[Draw]:
        """Without end, unless no source has a usable task left."""
        now = {source.name: position.get(source.name, Place()) for source in self.sources}
        live = list(self.sources)
        index = 0
        while live:
            source = min(live, key=lambda s: (now[s.name].begun + 1) / s.weight)
            found = self._next(source, now[source.name], forecast)
            if found is None:
                live.remove(source)
                continue
            task, length, now[source.name] = found
            yield Draw(index, source, task, dict(now), length)
            index += 1

    def again(self, step: int, index: int, task: str) -> Draw:
        """A draw that was made before, of the task of this key; for its position nothing follows. Raises ValueError where no
        source has that task."""
        for source in self.sources:
            if (found := source.order.find(task)) is not None:
                return Draw(index, source, found, {}, step=step)
        raise ValueError(f"task {task}: a group of step {step} is under way, but the task is no longer there; bring it back")

    def _next(self, source: Source, place: Place, forecast: Callable[[Problem], Forecast]) -> tuple[Problem, float, Place] | None:
        """Problem, length and the place after it; None where a whole pass has no usable task."""
        passed_over, tasks = 0, len(source.order)
        while passed_over < tasks:
            window = min(self._window, tasks - place.start % tasks)  # a pass ends before the next begins
            known = {position: forecast(source.order.task(position)) for position in place.open(window)}
            if unusable := [position for position, task in known.items() if not task.usable]:
                place = place.take(unusable)
                passed_over += len(unusable)
                continue
            best = max(known, key=lambda position: (known[position].mixed, -position))
            return source.order.task(best), known[best].length, replace(place.take([best]), begun=place.begun + 1)
        return None
