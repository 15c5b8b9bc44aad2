"""Which machine this is."""

import ipaddress
import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_id() -> str:
    """The same in two processes where they share a kernel, and with it a page cache and the loopback interface's address; another
    one after the machine was started anew."""
    return BOOT.read_text().strip() if BOOT.is_file() else socket.gethostname()


def reachable_address(from_host: str) -> str:
    """An address of this machine for processes on the machine of the id `from_host`. Raises OSError where it can be reached from
    other networks: who comes there first is sent the weights."""
    address = "127.0.0.1" if from_host == host_id() else socket.gethostbyname(socket.gethostname())
    if not ipaddress.ip_address(address).is_private:
        raise OSError(f"{address}, the address of {socket.gethostname()}, can be reached from other networks")
    return address
