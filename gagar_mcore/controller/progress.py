"""What the console shows of a step that is under way."""

from collections import Counter

from gagar_mcore.config.rollout import RolloutSection
from gagar_mcore.rollout.group import Event
from gagar_mcore.tracking.console import Console


class StepProgress:
    """Counts the events of one step; `begin` starts the next."""

    def __init__(self, console: Console, rollout: RolloutSection) -> None:
        self._console, self._rollout = console, rollout
        self._events: Counter[Event] = Counter()

    def begin(self) -> None:
        self._events.clear()

    def event(self, event: Event) -> None:
        self._events[event] += 1
        if event == "verified":
            wanted = self._rollout.groups_per_step * self._rollout.group_size
            self._console.stage("sessions", self._events["verified"], wanted)
        else:
            self._console.stage("grade", self._events["graded"], self._events["grading"])

    def groups(self, kept: int, dropped: Counter[str]) -> None:
        self._console.stage("collect", kept, self._rollout.groups_per_step, **dropped)
