"""The bubblewrap command line of one sandbox."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gagar_sandbox.host import Host
from gagar_sandbox.types import SandboxSpec

HOME = "/run/gagar"
PYTHON = f"{HOME}/bin/python3"
BASE = f"{HOME}/base"
MIB = 1 << 20
ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_SHARED = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "nsswitch.conf")
ETC_OWN = ("passwd", "group", "hosts")
WRITABLE = {"/tmp": "tmp", "/var/tmp": "var-tmp", "/logs": "logs", "/dev/shm": "shm"}
TAKEN = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")


@dataclass(frozen=True, slots=True)
class Disk:
    """All that a sandbox can write: a tmpfs of `size` bytes. The base is its lower layer (`overlay`), or is copied onto it
    after the start."""

    size: int
    overlay: bool


def check_spec(spec: SandboxSpec) -> None:
    """Raises ValueError or FileNotFoundError where the spec names what cannot be mounted."""
    base = base_of(spec)
    if not base.is_dir():
        raise FileNotFoundError(f"base {base} is no folder")
    check_mounts({spec.workdir: base, **spec.read_only})


def base_of(spec: SandboxSpec) -> Path:
    """Raises ValueError where the spec asks for an image, or for no base of the host."""
    if spec.image is not None:
        raise ValueError(f"image {spec.image}: the local backend runs on the host's own system; leave image out")
    if spec.base is None:
        raise ValueError("base: the local backend has no image whose files could be the base; name a folder")
    return spec.base


def check_mounts(mounts: Mapping[str, Path]) -> None:
    """Raises ValueError where a place inside cannot have a mount, FileNotFoundError where there is nothing to mount."""
    for inside, outside in mounts.items():
        path = PurePosixPath(inside)
        if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
            raise ValueError(f"{inside!r} is no place for a mount: give an absolute path below / without '..'")
        if any(path.is_relative_to(taken) for taken in TAKEN):
            raise ValueError(f"{inside!r} hides a part of the sandbox's system: mount it elsewhere")
        if not outside.exists():
            raise FileNotFoundError(f"read_only path {outside} does not exist")


def command(host: Host, spec: SandboxSpec, disk: Disk, info_fd: int, filter_fd: int | None) -> list[str]:
    """The whole command line, PID 1 included. bwrap writes a JSON object with `child-pid` to `info_fd`, and reads the program
    of the system call filter from `filter_fd`."""
    return [
        *_outer(host, disk),
        *(str(host.bwrap), "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        # Not --die-with-parent: a bwrap killed before it has set up its child leaves that waiting for ever. PID 1 ends with its
        # input, which the kernel ends with the controller. Not --new-session: Process makes one for all of this.
        *("--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
        *(() if filter_fd is None else ("--seccomp", str(filter_fd))),
        *("--info-fd", str(info_fd), "--bind", str(host.hold / "root"), "/"),
        # Read-only, for to the kernel a sandbox that root started owns /proc/sys.
        *("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"),
        *_system(host.inside),
        *_interpreter(host.inside),
        *_writable(host, spec, disk),
        *(word for at, outside in sorted(spec.read_only.items()) for word in ("--ro-bind", str(outside.resolve()), at)),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", spec.workdir, "--", PYTHON, "-I", "-S", "-c"),
        f"import sys; sys.path.insert(0, {HOME!r}); from inside.main import main; main()",
    ]


def _outer(host: Host, disk: Disk) -> Iterator[str]:
    """An outer bwrap that makes the tmpfs and runs the inner one: the disk of bwrap's own --tmp-overlay has no limit."""
    yield from (str(host.bwrap), "--unshare-user", "--dev-bind", "/", "/")
    yield from ("--size", str(disk.size), "--tmpfs", str(host.hold))
    for name in ("root", "upper", "work", *WRITABLE.values()):
        yield from ("--perms", "1777" if name in WRITABLE.values() else "0755", "--dir", str(host.hold / name))
    yield "--"


def _system(inside: Path) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ROOT_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in ETC_SHARED:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in ETC_OWN:
        yield from ("--ro-bind", str(inside / "etc" / name), f"/etc/{name}")


def _interpreter(inside: Path) -> Iterator[str]:
    """The base installation of the running interpreter, at its own place, and PID 1's code."""
    for prefix in sorted({sys.base_prefix, os.path.realpath(sys.base_prefix)}):
        if not Path(prefix).is_relative_to("/usr"):
            yield from ("--ro-bind", prefix, prefix)
    executable = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    for name in ("python", "python3"):
        yield from ("--symlink", executable, f"{HOME}/bin/{name}")
    yield from ("--ro-bind", str(inside), f"{HOME}/inside")


def _writable(host: Host, spec: SandboxSpec, disk: Disk) -> Iterator[str]:
    for path, name in WRITABLE.items():
        yield from ("--bind", str(host.hold / name), path)
    base = str(base_of(spec).resolve())
    if disk.overlay:
        yield from ("--overlay-src", base, "--overlay", str(host.hold / "upper"), str(host.hold / "work"), spec.workdir)
    else:
        yield from ("--ro-bind", base, BASE, "--bind", str(host.hold / "upper"), spec.workdir)
