"""Names that tell who made a thing, so that what a killed process left behind can be told from what is in use."""

import os
import re
from pathlib import Path

PREFIX = "gagar-sandboxes"


def prefix() -> str:
    """How the name of all that this process makes begins."""
    pid = os.getpid()
    return f"{PREFIX}-{_namespace()}-{pid}-{_started(pid)}-"


def left_behind(folder: Path) -> list[Path]:
    """What in `folder` is named so and was made by a process that has ended."""
    return [path for path in folder.glob(f"{PREFIX}-*") if is_dead(path.name)]


def is_dead(name: str) -> bool:
    """Whether what is named so was made by a process that has ended."""
    # Nothing is known of the processes of another namespace, as where containers share a folder.
    made = re.match(rf"{PREFIX}-{_namespace()}-(\d+)-(\d+)-", name)
    return made is not None and str(_started(int(made[1]))) != made[2]


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None where there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None
