"""What a sandbox is asked for, looked at before anything is sent to it."""

import errno
import math
import os
from collections.abc import Sequence

from gagar_sandbox.bwrap import MIB
from gagar_sandbox.types import Limits

SHOWN = 200  # characters of a command in an error


def check_command(command: Sequence[str], variables: Sequence[str]) -> None:
    """variables: each NAME=VALUE. Raises ValueError."""
    shown = repr(list(command))[:SHOWN]
    if not command or not command[0] or any("\0" in word or not _is_text(word) for word in (*command, *variables)):
        raise ValueError(f"cannot run {shown}: a command needs a name, and no NUL or lone surrogate in its words or environment")
    if any(variable.startswith("=") for variable in variables):
        raise ValueError(f"cannot run {shown}: a variable of its environment has no name")


def check_bounds(timeout_s: float, output_limit: int) -> None:
    """Raises ValueError."""
    if not math.isfinite(timeout_s):
        raise ValueError(f"timeout_s is {timeout_s}: a command needs a deadline")
    if output_limit < 0:
        raise ValueError(f"output_limit is {output_limit}: it cannot be negative")


def check_path(path: str) -> None:
    """Raises ValueError."""
    if not path or "\0" in path or not _is_text(path):
        raise ValueError(f"{path[:SHOWN]!r} is no path")


def check_size(size: int, name: str, limits: Limits) -> None:
    """size: of what is to be written, in bytes. Raises OSError where no file may be as large."""
    if size > limits.file_size_mb * MIB:
        raise OSError(errno.EFBIG, f"larger than file_size_mb, {limits.file_size_mb} MB", name)


def _is_text(word: str) -> bool:
    """Whether there are bytes that it names: none for a lone surrogate, as JSON can have them, but those of odd file names."""
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        return False
    return True
