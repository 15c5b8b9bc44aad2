"""The mounts of one sandbox, made by its PID 1 before it lets go of its rights."""

from __future__ import annotations

import _socket
import errno
import fcntl
import os

from .copy import copy_tree
from .disk import DISKS, HOME, Disk
from .kernel import BIND, NODEV, NOEXEC, NOSUID, RDONLY, REC, REMOUNT, mount, pivot, unmount

SIOCSIFFLAGS, IFF_UP = 0x8914, 1
SYSTEM = f"{HOME}/image"
ROOT = f"{HOME}/root"
PLAIN = NOSUID | NODEV


class Place:
    """Files that can be written, at a path of the sandbox; `base` is what is there at first."""

    def __init__(self, name: str, at: str, base: str) -> None:
        self.name = name
        self.at = at
        self.base = base


def furnish(disk: Disk, image: bool, workdir: str, places: list[Place], mounts: list[tuple[str, str]]) -> None:
    """Leaves us in the workdir, seeing nothing but the sandbox. `mounts`: what is seen read-only, and where. Raises OSError."""
    os.umask(0)
    root = ROOT if image else ""
    for place in places:
        _place(disk, place, root)
        if place.at == "/":
            mount("/dev", _point(f"{root}/dev", folder=True), flags=BIND | REC)
    _devices_and_processes(root)
    for source, at in mounts:
        mount(source, _point(root + at, folder=os.path.isdir(source)), flags=BIND | REC)
    unmount(DISKS)
    if image:
        os.chdir(ROOT)
        pivot()
    _network()
    _socket.sethostname("sandbox")
    if image:
        os.makedirs(workdir, 0o755, exist_ok=True)
    os.chdir(workdir)
    os.umask(0o022)


def _place(disk: Disk, place: Place, root: str) -> None:
    live, work = f"{disk.live}/{place.name}", f"{disk.live}/{place.name}-work"
    for folder in (live, work):
        os.mkdir(folder, 0o755 if place.base else 0o1777)
    at = root if place.at == "/" else _point(root + place.at, folder=True)
    before = [f"{layer}/{place.name}" for layer in reversed(disk.layers)] + ([place.base] if place.base else [])
    if disk.overlay and before:
        options = f"lowerdir={':'.join(before)},upperdir={live},workdir={work},userxattr"
        try:
            mount("overlay", at, "overlay", PLAIN, options)
        except OSError as error:
            raise NoOverlay(error.errno, error.strerror) from error
        return
    if before:
        copy_tree(before[0], live)
    mount(live, at, flags=BIND)


class NoOverlay(OSError):
    """The kernel refuses an overlay on these files."""


def _devices_and_processes(root: str) -> None:
    """Terminals and processes of our own. /proc is read-only, for to the kernel a sandbox that root started owns /proc/sys."""
    mount("devpts", f"{root}/dev/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    proc = _point(f"{root}/proc", folder=True)
    mount("proc", proc, "proc", PLAIN | NOEXEC)
    with open(f"{proc}/sys/user/max_user_namespaces", "w") as most:
        most.write("0")
    mount("", proc, None, REMOUNT | BIND | RDONLY | PLAIN | NOEXEC)


def _network() -> None:
    """Loopback, and nothing else."""
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, b"lo".ljust(16, b"\0") + IFF_UP.to_bytes(2, "little").ljust(24, b"\0"))
    any_socket.close()


def _point(path: str, folder: bool) -> str:
    """`path`, made where there is nothing to mount on."""
    if not os.path.exists(path):
        os.makedirs(path if folder else os.path.dirname(path), 0o755, exist_ok=True)
        if not folder:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))
    if os.path.isdir(path) != folder:
        raise OSError(errno.ENOTDIR, f"cannot mount at {path}: one of the two is a file")
    return path
