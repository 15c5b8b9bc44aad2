"""What grading came to, counted between one step and the next."""

from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

from gagar_mcore.grading.protocol import Reason, fallback_reason

REASONS = tuple(dict.fromkeys(["late", "invalid", "failed", *get_args(Reason)]))


@dataclass(slots=True)
class Tally:
    """`turns`, `tokens`, `checks`: of all sessions of grading models, those that failed included. `attempts`: hacks that were
    tried and not confirmed. `unconfirmed`: groups whose hacks could not be looked into."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, **amounts: int) -> None:
        self.counts.update(amounts)

    def graded(self, fallback: str | None) -> None:
        """One group, with the reason why it fell back, None where it has a verdict."""
        self.counts.update(["eligible", "graded" if fallback is None else f"fallback_{fallback_reason(fallback)}"])

    def take(self) -> dict[str, float]:
        """Metrics since this was last called. Every reason has one, so that none is missing from a chart."""
        names = ["eligible", "graded", *(f"fallback_{reason}" for reason in REASONS)]
        names += ["turns", "tokens", "checks", "attempts", "unconfirmed"]
        taken = {f"grading/{name}": float(self.counts[name]) for name in names}
        self.counts.clear()
        return taken
