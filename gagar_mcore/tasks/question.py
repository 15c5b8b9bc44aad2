"""Tasks that are answered with a text."""

from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Question:
    """An answer is right where the program `check` says so, or, without one, where it equals one of `accepted`. Beside a program,
    `accepted` are answers that it must take. The program is run with two files: the answer, and `data`; it exits with 0 for a
    right answer and with 1 for a wrong one. `source` is the one of the recipe's mix."""

    id: str
    instruction: str
    accepted: tuple[str, ...] = ()
    check: Path | None = None
    data: str = ""
    agent_timeout_s: float = 5400.0
    source: str = ""

    @property
    def key(self) -> str:
        """Its name among the tasks of all sources."""
        return f"{self.source}/{self.id}" if self.source else self.id


Problem = Task | Question
