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
    """Says its pid and hands over a pidfd, then answers requests until nobody is there to ask; each first ends the PID 1 of
    before. `become` comes first. `start`, `snapshot` and `reset` bring a socket for a new PID 1, and are answered with its pid
    and a pidfd. `rest` ends all but what makes the next start cheap: ourselves. Never returns."""
    hand_over(control, [b"ok", b"%d" % os.getpid()], os.getpid())
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
            child = _start(disk, sockets[0]) if disk else 0
        except OSError as error:
            hand_over(control, [b"error", os.fsencode(error.strerror or str(error))], 0)
        else:
            hand_over(control, [b"ok", b"%d" % child], child)
        for descriptor in sockets:
            os.close(descriptor)


def receive(control: _socket.socket) -> tuple[list[bytes], list[int]]:
    """The fields of one message and the descriptors that came with it; nothing where the other end is closed."""
    message, ancillary, _, _ = control.recvmsg(MESSAGE_BYTES, _socket.CMSG_SPACE(4))
    descriptors = [int.from_bytes(data[:4], "little") for _, _, data in ancillary]
    return unpack(message[4:]), descriptors


def hand_over(control: _socket.socket, fields: list[bytes], pid: int) -> None:
    """Send a message, with a pidfd of the process if there is one."""
    rights = []
    if pid:
        pidfd = os.pidfd_open(pid)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pidfd.to_bytes(4, "little"))]
    control.sendmsg([pack(*fields)], rights)
    if pid:
        os.close(pidfd)


def _prepare(disk: Disk | None, request: list[bytes]) -> Disk | None:
    match request:
        case [b"become", user]:
            _become(int(user))
        case [b"start", size, overlay]:
            return Disk(int(size), overlay == b"1")
        case [b"snapshot"] if disk:
            disk.freeze()
        case [b"reset"] if disk:
            disk.clear()
        case [b"rest"] if disk:
            disk.close()
            return None
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
