"""One executable task in the Harbor layout."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class TaskError(ValueError):
    """A task directory that cannot be used; the message names the file, the field and the mend."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task directory: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh`, `solution/`.

    `repository` is the folder whose copy the policy works in, mounted at `workdir`. `fail_to_pass` and `pass_to_pass`
    are test ids of `tests/config.json`; reward 1 needs every one of them passed. `source` is the one of the recipe's mix."""

    id: str
    directory: Path
    instruction: str
    repository: Path
    tests: Path
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    workdir: str = "/app"
    language: str = "python"
    agent_timeout_s: float = 5400.0
    verifier_timeout_s: float = 1800.0
    memory_mb: int = 8192
    metadata: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def key(self) -> str:
        """Its name among the tasks of all sources."""
        return f"{self.source}/{self.id}" if self.source else self.id
