"""Giving up, for good, all that PID 1 needed to build the sandbox."""

from __future__ import annotations

import ctypes
import errno
import resource

from .kernel import checked, libc, prctl
from .landlock import restrict

SET_DUMPABLE, SET_SECCOMP, CAPBSET_DROP, SET_NO_NEW_PRIVS, CAP_AMBIENT = 4, 22, 24, 38, 47
MODE_FILTER, CLEAR_ALL = 2, 4
CAPABILITIES_V3 = 0x20080522


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine(limits: list[tuple[int, int]], program: bytes, writable: list[str]) -> None:
    """`limits`: pairs of a resource and its most. `program`: a filter of system calls; empty: none. `writable`: folders, and
    what else may be written is refused a second time where the kernel has Landlock. Raises OSError."""
    for kind, value in limits:
        most = resource.getrlimit(kind)[1]
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (bound, bound))
    prctl(SET_NO_NEW_PRIVS, 1)
    restrict(writable)
    _drop_capabilities()
    prctl(SET_DUMPABLE, 0)  # commands have our user: they must not trace us nor open what we have open
    if program:
        filter_ = _Program(len(program) // 8, program)
        prctl(SET_SECCOMP, MODE_FILTER, ctypes.addressof(filter_))


def _drop_capabilities() -> None:
    prctl(CAP_AMBIENT, CLEAR_ALL)
    for capability in range(64):
        try:
            prctl(CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            break  # the kernel knows no more
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
