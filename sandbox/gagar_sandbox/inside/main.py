"""PID 1 of a sandbox: answers the host's requests on standard input and output, one at a time, until input ends."""

from __future__ import annotations

import ctypes
import os

from .files import read, write
from .frames import pack, unpack
from .run import SIGINT, run
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections would double the time to start
    from collections.abc import Callable

PR_SET_DUMPABLE = 4
SIG_DFL = 0


def main() -> None:
    os.closerange(3, 1024)
    _protect()
    watch = Watch(0, 0)
    _send(b"ready")
    while True:
        match _receive():
            case [b"watch", memory, processes]:
                watch = Watch(int(memory), int(processes))
                _send(b"ok")
            case [b"exec", timeout_s, output_limit, argv, env, stdin]:
                variables = dict(item.split(b"=", 1) for item in _list(env))
                _send(*run(_list(argv), variables, stdin, float(timeout_s), int(output_limit), watch, _cancelled))
            case [b"read", path, max_bytes]:
                _answer(read, os.fsdecode(path), int(max_bytes))
            case [b"write", path, data]:
                _answer(write, os.fsdecode(path), data)
            case [b"cancel"]:
                continue  # its exec had ended already


def _protect() -> None:
    """Commands run under this process's user: keep them from tracing it, opening its pipes, or interrupting it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")
    libc.signal(SIGINT, SIG_DFL)


def _answer(action: Callable[..., bytes], *arguments: object) -> None:
    try:
        _send(b"ok", action(*arguments))
    except OSError as error:
        _send(b"error", b"%d" % (error.errno or 0), os.fsencode(error.strerror or str(error)))


def _list(field: bytes) -> list[bytes]:
    return field.split(b"\0") if field else []


def _cancelled() -> bool:
    return _receive() == [b"cancel"]


def _send(*fields: bytes) -> None:
    rest = memoryview(pack(*fields))
    while rest:
        rest = rest[os.write(1, rest) :]


def _receive() -> list[bytes]:
    return unpack(_exactly(int.from_bytes(_exactly(4), "big")))


def _exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            os._exit(0)  # the host is gone, and with PID 1 goes the whole namespace
        data += chunk
    return bytes(data)
