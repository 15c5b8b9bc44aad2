"""Per-process limits of a sandbox, set on its PID 1, from which every command inherits them."""

import contextlib
import os
import resource

from gagar_sandbox.bwrap import MIB
from gagar_sandbox.types import Limits

OPEN_FILES = 1024
# Address space beyond the memory limit: what a process reserves and never touches, and what a bomb fills until it is seen.
RESERVED_MB = 1024


def rlimits(limits: Limits, *, address_space: bool) -> dict[int, int]:
    """The most of each resource. `address_space` limits that of each process: needed only where no cgroup bounds what they use
    together. Processes count in the sandbox's own user namespace, PID 1 and the keeper among them; the kernel does not count
    those of root."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_FSIZE: limits.file_size_mb * MIB,
        resource.RLIMIT_NPROC: limits.processes + 2,
    }
    if address_space:
        wanted[resource.RLIMIT_AS] = (limits.memory_mb + RESERVED_MB) * MIB
    return wanted


def put_first(pid: int) -> None:
    """Give PID 1 the processor before what it starts, where we may: its watch must not starve beside a fork bomb."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, -20)
