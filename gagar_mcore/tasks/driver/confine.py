"""Landlock: what a process and its children may open from now on. Standard library alone."""

from __future__ import annotations

import ctypes
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing, or json and signal for that matter, takes longer than the tests
    from collections.abc import Iterable
    from typing import Any

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ_AND_EXECUTE, FILES_ALONE, LIST = 0b1101, 0b0111, 0b1000
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev", sys.base_prefix)


def hide() -> None:
    """Close this process's memory and descriptors to others of its user."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine(readable: Iterable[str], writable: Iterable[str], listed: Iterable[str] = ()) -> bool:
    """Let this process read `readable`, read and write `writable`, and see the names below `listed`; nothing else of the file
    tree. From ABI 6 on it can signal no process outside. False where the kernel has no Landlock."""
    libc = ctypes.CDLL(None)
    abi = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if abi < 1:
        return False
    everything = (1 << (13 if abi == 1 else 14 if abi == 2 else 15 if abi < 5 else 16)) - 1
    scoped = 0b11 if abi >= 6 else 0
    attributes = (ctypes.c_uint64 * 3)(everything, 0, scoped)
    rules = libc.syscall(LANDLOCK_CREATE, attributes, 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    for paths, access in ((readable, READ_AND_EXECUTE), (writable, everything), (listed, LIST)):
        for path in paths:
            _allow(libc, rules, path, access)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    confined: int = libc.syscall(LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)
    return confined == 0


def _allow(libc: Any, rules: int, path: str, access: int) -> None:
    if not os.path.exists(path):
        return
    descriptor = os.open(path, os.O_PATH)
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        access &= FILES_ALONE
    beneath = access.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
    libc.syscall(LANDLOCK_ADD, rules, 1, beneath, 0)
    os.close(descriptor)
