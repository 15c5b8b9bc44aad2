"""What a run knows of its tasks from the groups that it has sampled: a fold over the steps, so that a restart knows the same."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, lgamma

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain, to_plain
from gagar_mcore.records.store import publish_json, read_json
from gagar_mcore.tasks.mix import Forecast
from gagar_mcore.tasks.question import Problem

FADE = 0.5  # what an older group counts beside the next one: the policy changes


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How one group of a task ended. `length`: generated tokens of its longest session; `failures`: what the task is charged with
    by then, see `Breaker`."""

    task: str
    passed: int
    valid: int
    length: int
    failures: int


@dataclass(slots=True)
class _Known:
    passed: float = 0.0
    failed: float = 0.0
    length: float = 0.0
    failures: int = 0


class History:
    """`group_size`: members of the groups to come; a task with `most_failures` is not usable."""

    def __init__(self, group_size: int, most_failures: int) -> None:
        self._group_size, self._most_failures = group_size, most_failures
        self._known: dict[str, _Known] = {}
        self._mean_length = 0.0

    def add(self, outcomes: Iterable[TaskOutcome]) -> None:
        for outcome in outcomes:
            known = self._known.setdefault(outcome.task, _Known())
            known.failures = outcome.failures
            if outcome.valid:
                known.passed = FADE * known.passed + outcome.passed
                known.failed = FADE * known.failed + outcome.valid - outcome.passed
                known.length = FADE * (known.length or outcome.length) + (1 - FADE) * outcome.length
        lengths = [known.length for known in self._known.values() if known.length]
        self._mean_length = sum(lengths) / len(lengths) if lengths else 0.0

    def forecast(self, task: Problem) -> Forecast:
        known = self._known.get(task.key) or _Known()
        chance = chance_of_mixed(known.passed, known.failed, self._group_size)
        return Forecast(known.failures < self._most_failures, chance, known.length or self._mean_length)

    def failures(self) -> dict[str, int]:
        return {task: known.failures for task, known in self._known.items() if known.failures}

    def set_aside(self) -> list[str]:
        return sorted(task for task, count in self.failures().items() if count >= self._most_failures)


def publish_outcomes(layout: RunLayout, step: int, outcomes: Iterable[TaskOutcome], epoch: int) -> None:
    publish_json(layout.outcomes(step), [to_plain(outcome) for outcome in outcomes], epoch)


def read_outcomes(layout: RunLayout, step: int) -> list[TaskOutcome]:
    """Raises RecordError where the step has none."""
    return [from_plain(TaskOutcome, outcome) for outcome in read_json(layout.outcomes(step))]


def chance_of_mixed(passed: float, failed: float, members: int) -> float:
    """That a group has passing and failing members, the pass rate being Beta(1 + passed, 1 + failed): one minus the beta-binomial
    chances of all and of none."""
    a, b = 1.0 + passed, 1.0 + failed
    rest = lgamma(a + b) - lgamma(a + b + members)
    return 1.0 - exp(rest + lgamma(a + members) - lgamma(a)) - exp(rest + lgamma(b + members) - lgamma(b))
