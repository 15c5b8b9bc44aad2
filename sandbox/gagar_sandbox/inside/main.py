"""PID 1 of a sandbox: answers the host's requests on standard input and output, one at a time, until input ends."""

from __future__ import annotations

import os

from .confine import confine
from .disk import Disk
from .files import read, write
from .frames import pack, unpack
from .kernel import libc
from .room import NoOverlay, Place, furnish
from .run import SIGINT, run
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections would double the time to start
    from collections.abc import Callable
    from typing import NoReturn


def main(disk: Disk, host: int) -> NoReturn:
    """`host`: the socket to it. Whatever goes wrong, no copy of this process goes on where it was forked."""
    try:
        os.dup2(host, 0)
        os.dup2(host, 1)
        os.closerange(3, 1024)
        libc.signal(SIGINT, None)
        if _begin(disk, _receive()):
            _serve()
    except BaseException as error:
        os.write(2, repr(error).encode())
        raise
    finally:
        os._exit(1)


def _begin(disk: Disk, request: list[bytes]) -> bool:
    """Build the sandbox that the host asks for and shut ourselves in; False, and the host knows why, where that cannot be."""
    match request:
        case [b"go", image, workdir, places, mounts, limits, program]:
            try:
                found = [Place(*words) for words in _rows(places, 3)]
                furnish(disk, image == b"1", os.fsdecode(workdir), found, [(source, at) for source, at in _rows(mounts, 2)])
                bounds = [(int(kind), int(value)) for kind, value in _rows(limits, 2)]
                confine(bounds, program, [place.at for place in found])
            except OSError as error:
                _send(b"no overlay" if isinstance(error, NoOverlay) else b"failed", os.fsencode(error.strerror or str(error)))
                return False
    _send(b"ready")
    return True


def _rows(field: bytes, width: int) -> list[list[str]]:
    words = [os.fsdecode(word) for word in _list(field)]
    return [words[at : at + width] for at in range(0, len(words), width)]


def _serve() -> NoReturn:
    watch = Watch(0, 0)
    while True:
        match _receive():
            case [b"watch", memory, processes]:
                watch = Watch(int(memory), int(processes))
                _send(b"ok")
            case [b"exec", timeout_s, output_limit, streamed, argv, env, stdin]:
                variables = dict(item.split(b"=", 1) for item in _list(env))
                tell = _tell if streamed == b"1" else None
                reply = run(_list(argv), variables, stdin, float(timeout_s), int(output_limit), watch, _cancelled, tell)
                _send(*reply)
            case [b"read", path, max_bytes]:
                _answer(read, os.fsdecode(path), int(max_bytes))
            case [b"write", path, data]:
                _answer(write, os.fsdecode(path), data)
            case [b"cancel"]:
                continue  # its exec had ended already


def _answer(action: Callable[..., bytes], *arguments: object) -> None:
    try:
        _send(b"ok", action(*arguments))
    except OSError as error:
        _send(b"error", b"%d" % (error.errno or 0), os.fsencode(error.strerror or str(error)))


def _list(field: bytes) -> list[bytes]:
    return field.split(b"\0") if field else []


def _tell(stream: bytes, data: bytes) -> None:
    _send(stream, data)


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
