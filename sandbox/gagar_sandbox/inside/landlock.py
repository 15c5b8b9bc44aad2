"""A second wall around the files: Landlock, from the kernel's user-space API (include/uapi/linux/landlock.h)."""

from __future__ import annotations

import ctypes
import os

from .kernel import checked, libc

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION = 1
LEAST = 2  # the one before forbids every rename from folder to folder
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REFER, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 13, 1 << 14, 1 << 15
FIRST = (1 << 13) - 1  # what version 1 handles
READ = EXECUTE | READ_FILE | READ_DIR
DEVICES = READ | WRITE_FILE | TRUNCATE | IOCTL_DEV
SCOPES = 3  # abstract sockets and signals, since version 6


def version() -> int:
    """0 where the kernel has none, or has it off."""
    return max(0, int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION))))


def restrict(writable: list[str]) -> None:
    """Everything can be read, /dev be written to, and only what lies beneath `writable` be changed. Does nothing where Landlock
    is missing or too old. Needs no_new_privs. Raises OSError."""
    known = version()
    if known < LEAST:
        return
    handled = FIRST | REFER | (TRUNCATE if known >= 3 else 0) | (IOCTL_DEV if known >= 5 else 0)
    fields = (ctypes.c_uint64 * 3)(handled, 0, SCOPES)  # files, network, scopes: as many as the version has
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = int(libc.syscall(CREATE_RULESET, fields, ctypes.c_size_t(size), ctypes.c_uint32(0)))
    checked(ruleset, "landlock")
    for path, rights in [("/", READ), ("/dev", DEVICES), *((path, handled) for path in writable)]:
        _allow(ruleset, path, rights & handled)
    checked(libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH)
    rule = rights.to_bytes(8, "little") + folder.to_bytes(4, "little")
    checked(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, ctypes.c_uint32(0)), f"landlock_add_rule {path}")
    os.close(folder)
