"""What a sandbox is asked for, looked at before anything is sent to it."""

import errno
from collections.abc import Sequence

from gagar_sandbox.bwrap import MIB
from gagar_sandbox.types import Limits


def check_command(command: Sequence[str], variables: Sequence[str]) -> None:
    """variables: each NAME=VALUE. Raises ValueError."""
    if not command or not command[0] or any("\0" in word for word in (*command, *variables)):
        raise ValueError(f"cannot run {list(command)!r}: a command needs a name, and no NUL in its words or environment")


def check_path(path: str) -> None:
    """Raises ValueError."""
    if not path or "\0" in path:
        raise ValueError(f"{path!r} is no path")


def check_size(size: int, name: str, limits: Limits) -> None:
    """size: of what is to be written, in bytes. Raises OSError where no file may be as large."""
    if size > limits.file_size_mb * MIB:
        raise OSError(errno.EFBIG, f"larger than file_size_mb, {limits.file_size_mb} MB", name)
