"""Why this machine refuses namespaces to bubblewrap, and what its owner can do."""

import os
from pathlib import Path

from gagar_sandbox.host import find_bwrap
from gagar_sandbox.types import SandboxUnavailable

APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")
MOST = Path("/proc/sys/user/max_user_namespaces")


def unavailable(complaint: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"bubblewrap cannot build a sandbox here ({complaint}). {mend()}")


def mend() -> str:
    """What is likely to help, from what the kernel says of itself."""
    if _read(APPARMOR) == "1" and os.geteuid() != 0:
        return (
            "AppArmor forbids user namespaces to programs without a profile. As root, either write "
            f"`abi <abi/4.0>, include <tunables/global> profile gagar-bwrap {find_bwrap()} flags=(unconfined) {{ userns, }}` "
            "to /etc/apparmor.d/gagar-bwrap and run `apparmor_parser -r /etc/apparmor.d/gagar-bwrap`, "
            "or run `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    if _read(CLONE) == "0" and os.geteuid() != 0:
        return "As root: `sysctl -w kernel.unprivileged_userns_clone=1`."
    if _read(MOST) == "0":
        return "As root: `sysctl -w user.max_user_namespaces=15000`."
    if "Seccomp:\t2" in Path("/proc/self/status").read_text():
        return (
            "A system call filter is on, as in most containers: start the container with one that allows namespaces and "
            "mounts (Docker: `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`)."
        )
    return "See that the kernel has user namespaces (CONFIG_USER_NS) and that no security module forbids them."


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None
