"""What every sandbox backend offers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Outcome = Literal["exited", "timed_out", "out_of_memory"]
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]


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
    """`base` is seen copy-on-write at `workdir`; None: what the image has there. `read_only` maps further paths inside to folders
    or files of the host. `image` is a container image whose files are the system; None: the backend's own choice, which for the
    local one is the host's /usr."""

    base: Path | None
    workdir: str = "/app"
    read_only: Mapping[str, Path] = field(default_factory=dict)
    limits: Limits = Limits()
    image: str | None = None


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
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run `command` in the workdir; its whole process tree is gone when this returns or is cancelled. `on_output` is given
        output as it comes, uncut, but for what comes while the connection to the sandbox is broken."""

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Contents of a file inside. Raises FileNotFoundError, or OSError where it is no plain file or too large."""

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file inside, parents included. Raises OSError where the sandbox refuses it (limits, read-only)."""

    async def snapshot(self) -> None:
        """What is written so far is what `reset` returns to from now on. No command may be running."""

    async def reset(self) -> None:
        """All that can be written is as it was at the last snapshot, or when the sandbox was acquired; every process is gone."""

    async def close(self) -> None:
        """Kill everything inside and free it; safe to call twice."""


class SandboxPool(Protocol):
    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox; waits while the pool is full. Raises SandboxLost, SandboxUnavailable, and ValueError where the backend
        cannot give what the spec asks for."""

    async def close(self) -> None: ...
