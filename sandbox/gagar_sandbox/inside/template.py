"""What the sandboxes of one base are forked from: a system in which everything is read-only, and this code, loaded."""

from __future__ import annotations

import _socket
import gc
import os

from .keeper import keep, receive
from .kernel import SIGCHLD, libc

SIG_DFL, SIG_IGN = None, 1


def serve() -> None:
    """Fork a keeper for each socket that comes on standard input, until it ends."""
    libc.signal(SIGCHLD, SIG_IGN)  # they are reaped as they end
    control = _socket.socket(fileno=0)
    gc.freeze()
    control.send(b"ready")
    while True:
        _, sockets = receive(control)
        if not sockets:
            break
        if os.fork() == 0:
            libc.signal(SIGCHLD, SIG_DFL)
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, control.detach())
            os.close(null)
            keep(_socket.socket(fileno=sockets[0]))
        os.close(sockets[0])
    try:
        os.waitpid(-1, 0)  # as nobody collects them, it waits for all
    finally:
        os._exit(0)
