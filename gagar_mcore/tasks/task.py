"""One executable task in the Harbor layout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gagar_sandbox.types import Limits, SandboxSpec

SITE = "/opt/site-packages"  # where a task's own packages are, inside


class TaskError(ValueError):
    """A task directory that cannot be used; the message names the file, the field and the mend."""


@dataclass(frozen=True, slots=True)
class Collect:
    """A command that makes the artifact, run in the session's sandbox at its end."""

    command: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Grading:
    """How the tests tell their outcome: files inside, in one format, and what is a test's id there. `log`: what `test.sh` prints,
    read by SWE-bench's `parser`; `reward`: the reward file alone decides."""

    format: Literal["ctrf", "junit", "log", "reward"] = "ctrf"
    reports: tuple[str, ...] = ("/logs/verifier/report.json",)
    node_id: str = "name"
    parser: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A task directory: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh`, `solution/`.

    `repository` is the folder whose copy the policy works in, mounted at `workdir`; where there is none, `image` has it,
    and `tests_image` where the tests run.
    `fail_to_pass` and `pass_to_pass` are test ids of `tests/config.json`; reward 1 needs every one of them passed. `source` is
    the one of the recipe's mix. `inventory`: seconds of all tests that a run reports, where they were recorded, `unsteady` the
    beginnings of ids that no two runs share, and `reached` what its own code reaches for in an honest run. `guarded`: files and
    folders of the repository that no patch changes, beside those that are known by their names. `artifact`: the file inside that
    the session hands in, which `collect` makes and `test.sh` takes; None: the difference to the repository, applied before
    `test.sh` runs. `warnings`: what its files say and is not heeded here; `unsupported`: what keeps it from running."""

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
    disk_mb: int = 10240
    image: str | None = None
    tests_image: str | None = None
    base_commit: str | None = None
    artifact: str | None = None
    collect: tuple[Collect, ...] = ()
    grading: Grading = Grading()
    inventory: Mapping[str, float] = field(default_factory=dict)
    unsteady: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    verifier_environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name among the tasks of all sources."""
        return f"{self.source}/{self.id}" if self.source else self.id

    @property
    def site(self) -> Path:
        """Packages that the task brings, seen read-only at `SITE`; may be missing."""
        return self.directory / "environment" / "site"

    @property
    def listed(self) -> tuple[str, ...]:
        return (*self.fail_to_pass, *self.pass_to_pass)

    def sandbox(self, most: Limits, read_only: Mapping[str, Path]) -> SandboxSpec:
        """Its repository, packages and resources, these no larger than `most`, and `read_only` beside."""
        limits = Limits(min(self.memory_mb, most.memory_mb), most.processes, most.file_size_mb, min(self.disk_mb, most.disk_mb))
        mounts = ({SITE: self.site} if self.site.is_dir() else {}) | dict(read_only)
        if self.image is not None and not self.repository.is_dir():
            return SandboxSpec(None, self.workdir, mounts, limits, self.image)
        return SandboxSpec(self.repository, self.workdir, mounts, limits)
