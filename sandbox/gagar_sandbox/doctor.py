"""What this machine offers to sandboxes."""

import asyncio
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gagar_sandbox.host import find_bwrap
from gagar_sandbox.inside.landlock import LEAST, version
from gagar_sandbox.pool import LocalPool
from gagar_sandbox.seccomp import program
from gagar_sandbox.types import SandboxLost, SandboxSpec, SandboxUnavailable

VERSION_S = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `mend` says what helps where it is not `ok`. Sandboxes run without what is not `needed`, only less well."""

    name: str
    ok: bool
    detail: str
    mend: str = ""
    needed: bool = True


def diagnose() -> list[Check]:
    """Findings from a sandbox started here and now; must not be called from a running event loop."""
    try:
        bwrap = find_bwrap()
    except SandboxUnavailable as error:
        return [Check("bwrap", False, "not found", str(error))]
    version = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    found = Check(
        "bwrap", version.returncode == 0, f"{bwrap}: {(version.stdout or version.stderr).strip()}", "install another bwrap"
    )
    return [found, *asyncio.run(_try())]


async def _try() -> list[Check]:
    pool = LocalPool(1)
    with tempfile.TemporaryDirectory() as base:
        try:
            sandbox = await pool.acquire(SandboxSpec(Path(base)))
            python = await sandbox.exec(["python3", "-V"], timeout_s=VERSION_S)
        except (SandboxLost, SandboxUnavailable) as error:
            return [Check("namespaces", False, str(error), "see the message")]
        finally:
            await pool.close()
    return [
        Check("namespaces", True, "a sandbox starts"),
        Check("python inside", python.exit_code == 0, (python.stdout or python.stderr).decode(errors="replace").strip()),
        overlay_check(pool),
        _limits(pool),
        *_walls(),
    ]


def overlay_check(pool: LocalPool) -> Check:
    if pool.overlays:
        return Check("overlay mounts", True, "files are seen copy-on-write", needed=False)
    mend = "needs Linux 5.11 or newer, and a file system that can lie under an overlay"
    return Check("overlay mounts", False, "refused: each sandbox copies its files", mend, needed=False)


def _limits(pool: LocalPool) -> Check:
    if pool.cgroup_version:
        detail = f"control groups, version {pool.cgroup_version}"
        return Check("limits on memory and processes", True, detail, needed=False)
    detail = "no writable control group: a watch inside the sandbox counts 20 times a second"
    mend = "run as root, or under `systemd-run --user --scope -p Delegate=yes`"
    return Check("limits on memory and processes", False, detail, mend, needed=False)


def _walls() -> list[Check]:
    """What stands behind the namespaces."""
    known, filtered = version(), program() is not None
    return [
        Check(
            "system call filter",
            filtered,
            "rarer parts of the kernel are refused" if filtered else f"none for {platform.machine()}",
            "use a machine with x86-64 or aarch64",
            needed=False,
        ),
        Check(
            "Landlock",
            known >= LEAST,
            f"version {known}" if known else "not in this kernel, or off",
            "needs Linux 5.19 or newer with landlock among its security modules (kernel option lsm=)",
            needed=False,
        ),
    ]
