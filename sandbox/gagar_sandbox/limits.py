"""Per-process limits of a sandbox, set from outside on its PID 1, from which every command inherits them."""

import contextlib
import os
import resource

from gagar_sandbox.bwrap import MIB
from gagar_sandbox.types import Limits

OPEN_FILES = 1024
# Address space beyond the memory limit: what a process reserves and never touches, and what a bomb fills until it is seen.
RESERVED_MB = 1024


def set_rlimits(pid: int, limits: Limits, *, address_space: bool) -> None:
    """`address_space` limits that of each process: needed only where no cgroup bounds what they use together.
    The number of processes counts in the sandbox's own user namespace; the kernel ignores it for a sandbox of root's."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_FSIZE: limits.file_size_mb * MIB,
        resource.RLIMIT_NPROC: limits.processes + 1,
    }
    if address_space:
        wanted[resource.RLIMIT_AS] = (limits.memory_mb + RESERVED_MB) * MIB
    for kind, value in wanted.items():
        _, most = resource.prlimit(pid, kind)
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.prlimit(pid, kind, (bound, bound))


def put_first(pid: int) -> None:
    """Give PID 1 the processor before what it starts, where we may: its watch must not starve beside a fork bomb."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, -20)
