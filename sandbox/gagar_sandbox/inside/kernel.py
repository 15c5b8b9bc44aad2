"""Calls of the kernel for which Python 3.11 has no functions. All raise OSError."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
_holding = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, for a call that two processes return from

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000,
    0x02000000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
SIGCHLD = 17
CLONE = 56 if os.uname().machine == "x86_64" else 220


def mount(source: str, at: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    words = [os.fsencode(word) if word is not None else None for word in (source, at, kind)]
    checked(libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options)), f"mount of {kind or source} at {at}")


def unmount(at: str) -> None:
    """Take it out of sight now; it ends with its last use."""
    checked(libc.umount2(os.fsencode(at), DETACH), f"unmount of {at}")


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def pivot() -> None:
    """Make the working directory the root, and put the old root out of reach."""
    checked(libc.pivot_root(b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def clone(namespaces: int) -> int:
    """As os.fork, into new namespaces."""
    pid = int(_holding.syscall(CLONE, ctypes.c_ulong(namespaces | SIGCHLD), *[ctypes.c_ulong(0)] * 4))
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone: " + os.strerror(ctypes.get_errno()))
    return pid


def prctl(option: int, *arguments: int) -> None:
    words = (*arguments, 0, 0, 0, 0)[:4]
    checked(libc.prctl(option, *(ctypes.c_ulong(word) for word in words)), f"prctl {option}")


def checked(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
