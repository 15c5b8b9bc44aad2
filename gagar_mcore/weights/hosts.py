"""Which machine this is."""

import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_id() -> str:
    """The same in two processes where they share a kernel, and with it a page cache and the loopback interface's address; another
    one after the machine was started anew."""
    return BOOT.read_text().strip() if BOOT.is_file() else socket.gethostname()


def reachable_address(from_host: str) -> str:
    """An address of this machine for processes on the machine of the id `from_host`."""
    return "127.0.0.1" if from_host == host_id() else socket.gethostbyname(socket.gethostname())
