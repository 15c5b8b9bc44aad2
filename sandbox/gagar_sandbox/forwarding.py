"""How a command in a sandbox reaches a unix socket as a port: clients of HTTP know no other addresses."""

from collections.abc import Sequence

from gagar_sandbox.bwrap import HOME, PYTHON


def forwarding(socket: str, port: int, command: Sequence[str]) -> list[str]:
    """`command`, to be given to `Sandbox.exec`, with 127.0.0.1:`port` leading to the socket at `socket` while it runs. A socket
    of the host is brought in with the folder that holds it, by `SandboxSpec.read_only`."""
    return [PYTHON, "-I", "-S", f"{HOME}/inside/forward.py", socket, str(port), *command]
