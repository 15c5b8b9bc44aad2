"""The process that holds one sandbox: its disk, and one PID 1 after the other, each in namespaces of its own."""

from __future__ import annotations

import _socket
import os

from .disk import Disk
from .frames import pack, unpack
from .kernel import NEWCGROUP, NEWIPC, NEWNET, NEWNS, NEWPID, NEWUSER, NEWUTS, PRIVATE, REC, clone, mount, unshare
from .main import main

MESSAGE_BYTES = 4096
SIGKILL = 9


def keep(control: _socket.socket) -> None:
    """Answers start, snapshot and reset, each of which brings a socket for a new PID 1, with that one's pid and a pidfd of each
    of us; until nobody is there to ask. Never returns."""
    child = 0
    disk: Disk | None = None
    while True:
        request, sockets = receive(control)
        if child:
            os.kill(child, SIGKILL)
            os.waitpid(child, 0)
            child = 0
        if not request:
            os._exit(0)
        try:
            disk = _prepare(disk, request)
            child = _start(disk, sockets[0])
            reply, descriptors = pack(b"ok", b"%d" % child), [os.pidfd_open(child), os.pidfd_open(os.getpid())]
        except OSError as error:
            reply, descriptors = pack(b"error", os.fsencode(error.strerror or str(error))), []
        send(control, reply, descriptors)
        for descriptor in (*sockets, *descriptors):
            os.close(descriptor)


def receive(control: _socket.socket) -> tuple[list[bytes], list[int]]:
    """The fields of one message and the descriptors that came with it; nothing where the other end is closed."""
    message, ancillary, _, _ = control.recvmsg(MESSAGE_BYTES, _socket.CMSG_SPACE(4))
    descriptors = [int.from_bytes(data[:4], "little") for _, _, data in ancillary]
    return unpack(message[4:]), descriptors


def send(control: _socket.socket, message: bytes, descriptors: list[int]) -> None:
    rights = b"".join(descriptor.to_bytes(4, "little") for descriptor in descriptors)
    control.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [])


def _prepare(disk: Disk | None, request: list[bytes]) -> Disk:
    match request:
        case [b"start", user, size, overlay]:
            _become(int(user))
            return Disk(int(size), overlay == b"1")
        case [b"snapshot"] if disk:
            disk.freeze()
        case [b"reset"] if disk:
            disk.clear()
    if disk is None:
        raise OSError(0, "not started yet")
    return disk


def _become(user: int) -> None:
    """Root of a user namespace in which we alone are, under the number `user`."""
    outside_user, outside_group = os.getuid(), os.getgid()
    unshare(NEWUSER | NEWNS)
    for name, text in (
        ("uid_map", f"{user} {outside_user} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{user} {outside_group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    mount("", "/", None, REC | PRIVATE)


def _start(disk: Disk, host: int) -> int:
    pid = clone(NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWPID | NEWNET)
    if pid == 0:
        main(disk, host)
    return pid
