"""Starting one sandbox: the process, the copy of its files where there is no overlay, its limits."""

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gagar_sandbox.bwrap import BASE, HOME, MIB, PYTHON, Disk, base_of, command
from gagar_sandbox.cgroup import Cgroups, Leaf
from gagar_sandbox.host import Host
from gagar_sandbox.limits import put_first, set_rlimits
from gagar_sandbox.link import Link
from gagar_sandbox.local import LocalSandbox, discard
from gagar_sandbox.types import Limits, SandboxLost, SandboxSpec

START_S = 60.0
COPY_S = 300.0
READY_BYTES = 64


class Refused(SandboxLost):
    """bwrap would not build the sandbox; the message is its own."""


async def start(host: Host, spec: SandboxSpec, *, overlay: bool, on_close: Callable[[LocalSandbox], None]) -> LocalSandbox:
    """A sandbox ready for requests, its base under an overlay or copied. Raises Refused, SandboxLost, OSError."""
    size = spec.limits.disk_mb * MIB + (0 if overlay else await asyncio.to_thread(_tree_bytes, base_of(spec)))
    with _memory_file() as info, _memory_file(host.syscall_filter or b"") as program:
        filter_fd = program.fileno() if host.syscall_filter else None
        words = command(host, spec, Disk(size, overlay), info.fileno(), filter_fd)
        link = await Link.open(words, [info.fileno(), program.fileno()])
        leaf = None
        try:
            await _ready(link)
            pid = _pid(os.pread(info.fileno(), 4096, 0))
            leaf = await _limit(link, pid, spec.limits, size, host.cgroups)
            sandbox = LocalSandbox(link, spec.limits, leaf, on_close)
            if not overlay:
                await _copy_base(sandbox, spec)
            set_rlimits(pid, spec.limits, address_space=leaf is None)
        except BaseException:
            await asyncio.shield(discard(link, leaf))
            raise
    return sandbox


def _memory_file(data: bytes = b"") -> BinaryIO:
    file = open(os.memfd_create("gagar"), "w+b", buffering=0)  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


async def _ready(link: Link) -> None:
    try:
        await link.reply(READY_BYTES, START_S)
    except SandboxLost as error:
        complaint = await link.complaint()
        raise (Refused(complaint) if complaint.startswith("bwrap:") else SandboxLost(f"{error} {complaint}")) from error


def _pid(info: bytes) -> int:
    found = re.search(rb'"child-pid": *(\d+)', info)
    if found is None:
        raise SandboxLost(f"bwrap did not tell the sandbox's pid: {info[:100]!r}")
    return int(found[1])


async def _limit(link: Link, pid: int, limits: Limits, disk_bytes: int, cgroups: Cgroups | None) -> Leaf | None:
    """Bound memory and processes together. What is written lies in memory too, and has a bound of its own."""
    memory, processes = limits.memory_mb * MIB, limits.processes
    if cgroups is None:
        put_first(pid)
        await link.call(b"watch", b"%d" % memory, b"%d" % processes, reply_bytes=READY_BYTES, timeout_s=START_S)
        return None
    leaf = cgroups.leaf(memory + disk_bytes, processes + 1)
    leaf.add(pid)
    return leaf


def _tree_bytes(root: Path) -> int:
    """Upper bound of what the tree takes on a tmpfs."""
    page = os.sysconf("SC_PAGE_SIZE")
    names = [os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files)]
    return sum(os.lstat(name).st_size + page for name in names)


async def _copy_base(sandbox: LocalSandbox, spec: SandboxSpec) -> None:
    workdir = PurePosixPath(spec.workdir)
    mounted = [str(path.relative_to(workdir)) for path in map(PurePosixPath, spec.read_only) if path.is_relative_to(workdir)]
    words = [PYTHON, "-I", "-S", f"{HOME}/inside/copy.py", BASE, spec.workdir, *mounted]
    result = await sandbox.exec(words, timeout_s=COPY_S)
    if result.exit_code != 0:
        raise SandboxLost(f"cannot copy {spec.base}: {result.stderr.decode(errors='replace')[-500:]}")
