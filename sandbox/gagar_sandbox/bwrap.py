"""The bubblewrap command line of one sandbox."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
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


def check_spec(spec: SandboxSpec) -> None:
    """Raises ValueError or FileNotFoundError where the spec names what cannot be mounted."""
    if spec.base is None and spec.image is None:
        raise ValueError("base: there is neither a folder nor an image whose files could be the base; name one")
    if spec.base is not None and not spec.base.is_dir():
        raise FileNotFoundError(f"base {spec.base} is no folder")
    check_mounts({spec.workdir: spec.base or Path("/"), **spec.read_only}, ("/dev", "/proc") if spec.image else TAKEN)


def check_mounts(mounts: Mapping[str, Path], taken: Sequence[str] = TAKEN) -> None:
    """Raises ValueError where a place inside cannot have a mount, FileNotFoundError where there is nothing to mount."""
    for inside, outside in mounts.items():
        path = PurePosixPath(inside)
        if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
            raise ValueError(f"{inside!r} is no place for a mount: give an absolute path below / without '..'")
        if any(path.is_relative_to(place) for place in taken):
            raise ValueError(f"{inside!r} hides a part of the sandbox's system: mount it elsewhere")
        if not outside.exists():
            raise FileNotFoundError(f"read_only path {outside} does not exist")


def command(host: Host, spec: SandboxSpec, image: Path | None) -> list[str]:
    """The command line of a template: a system of which nothing can be written, and the program that sandboxes are forked from.
    It keeps the host's processes and network, which nothing but that program sees."""
    static, _ = _mounts(spec, image)
    return [
        # Not --die-with-parent: a bwrap killed before it has set up its child leaves that waiting for ever. The program ends with
        # its input, which the kernel ends with the controller. Not --new-session: the process has one.
        *(str(host.bwrap), "--unshare-user", "--unshare-ipc", "--unshare-uts", "--clearenv", "--tmpfs", "/"),
        *("--bind", "/proc", "/proc", "--dev", "/dev"),
        *_system(host.inside),
        *_interpreter(host.inside),
        *_folders(spec, image),
        *(word for at, outside in static for word in ("--ro-bind", str(outside.resolve()), at)),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--", PYTHON, "-I", "-S", "-c"),
        f"import sys; sys.path.insert(0, {HOME!r}); from inside.template import serve; serve()",
    ]


def request(spec: SandboxSpec, image: Path | None, rlimits: Mapping[int, int], syscall_filter: bytes) -> list[bytes]:
    """What PID 1 is told to build, see inside/main.py."""
    places = [("root", "/", f"{HOME}/image")] if image else []
    if spec.base:
        places.append(("base", spec.workdir, BASE))
    places += [(name, at, "") for at, name in WRITABLE.items()]
    sources = [(f"{HOME}/mounts/{number}", at) for number, (at, _) in enumerate(_mounts(spec, image)[1])]
    if image:
        sources.append((f"{HOME}/inside/etc/hosts", "/etc/hosts"))
    limits = [(str(kind), str(value)) for kind, value in rlimits.items()]
    rows = (b"\0".join(os.fsencode(word) for row in table for word in row) for table in (places, sources, limits))
    return [b"go", b"1" if image else b"0", os.fsencode(spec.workdir), *rows, syscall_filter]


def _mounts(spec: SandboxSpec, image: Path | None) -> tuple[list[tuple[str, Path]], list[tuple[str, Path]]]:
    """Those of `read_only` that lie in the system, and those that lie in what can be written, as all of an image can."""
    writable = [PurePosixPath(path) for path in ("/" if image else spec.workdir, *WRITABLE)]
    inside: list[tuple[str, Path]] = []
    static: list[tuple[str, Path]] = []
    for at, outside in sorted(spec.read_only.items()):
        (inside if any(PurePosixPath(at).is_relative_to(path) for path in writable) else static).append((at, outside))
    return static, inside


def _folders(spec: SandboxSpec, image: Path | None) -> Iterator[str]:
    """What each sandbox takes its files from, and where it mounts them."""
    for at in (f"{HOME}/disks", f"{HOME}/root", *WRITABLE, *(() if image else (spec.workdir,))):
        yield from ("--dir", at)
    if spec.base:
        yield from ("--ro-bind", str(spec.base.resolve()), BASE)
    if image:
        yield from ("--ro-bind", str(image), f"{HOME}/image")
    for number, (_, outside) in enumerate(_mounts(spec, image)[1]):
        yield from ("--ro-bind", str(outside.resolve()), f"{HOME}/mounts/{number}")


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
