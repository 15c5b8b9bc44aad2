"""What every sandbox backend offers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Outcome = Literal["exited", "timed_out", "out_of_memory"]


class SandboxUnavailable(RuntimeError):
    """This machine cannot run sandboxes; the message says why and gives the mend."""


class SandboxLost(RuntimeError):
    """The sandbox or its host failed under a running call: infrastructure, never the command's fault."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox: memory and processes of everything inside, size of a single file and of all files written."""

    memory_mb: int = 512
    processes: int = 64
    file_size_mb: int = 16
    disk_mb: int = 64


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """`base` is seen copy-on-write at `workdir`; `read_only` maps further paths inside to folders or files of the host."""

    base: Path
    workdir: str = "/app"
    read_only: Mapping[str, Path] = field(default_factory=dict)
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A command that ran to its end or was stopped by a limit. `exit_code` is 128 + signal where a signal ended it.
    `output_truncated` says that stdout or stderr was longer than the limit and lost its middle."""

    outcome: Outcome
    exit_code: int
    stdout: bytes
    stderr: bytes
    output_truncated: bool
    seconds: float


class Sandbox(Protocol):
    """One live sandbox. Every call has a deadline and raises SandboxLost where the infrastructure failed."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        output_limit: int = 65536,
    ) -> ExecResult:
        """Run `command` in the workdir; its whole process tree is gone when this returns or is cancelled."""

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Contents of a file inside. Raises FileNotFoundError, or OSError where it is no plain file or too large."""

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file inside, parents included. Raises OSError where the sandbox refuses it (limits, read-only)."""

    async def close(self) -> None:
        """Kill everything inside and free it; safe to call twice."""


class SandboxPool(Protocol):
    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox; waits while the pool is full. Raises SandboxLost, SandboxUnavailable."""

    async def close(self) -> None: ...
