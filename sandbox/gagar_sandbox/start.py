"""Starting one sandbox: the process, the copy of its files where there is no overlay, its limits."""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from gagar_sandbox.bwrap import BASE, HOME, MIB, PYTHON, Mounts, command
from gagar_sandbox.limits import set_rlimits
from gagar_sandbox.link import Link
from gagar_sandbox.local import LocalSandbox
from gagar_sandbox.types import SandboxLost, SandboxSpec

START_S = 60.0
COPY_S = 300.0


async def start(bwrap: Path, spec: SandboxSpec, hold: Path | None, on_close: Callable[[LocalSandbox], None]) -> LocalSandbox:
    """A sandbox ready for requests, its base under an overlay on `hold`, or copied where that is None.
    Raises SandboxLost with what bwrap said."""
    disk = spec.limits.disk_mb * MIB
    mounts = Mounts(hold, disk) if hold else Mounts(None, disk + _tree_bytes(spec.base))
    info, writer = os.pipe()
    try:
        link = Link(await _spawn(command(bwrap, spec, mounts, writer), writer))
        try:
            await link.reply(64, START_S)
            sandbox = LocalSandbox(link, spec.limits, on_close)
            if hold is None:
                await _copy_base(sandbox, spec)
            set_rlimits(_pid(os.read(info, 4096)), spec.limits, address_space=True)
            await _set_watch(link, spec)
        except BaseException:
            await link.close()
            raise
    finally:
        os.close(info)
        os.close(writer)
    return sandbox


async def _spawn(words: Sequence[str], inherited: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=(inherited,),
        start_new_session=True,  # Ctrl-C in a terminal is for the controller alone
        env={},
    )


def _pid(info: bytes) -> int:
    found = re.search(rb'"child-pid": *(\d+)', info)
    if found is None:
        raise SandboxLost(f"bwrap did not tell the sandbox's pid: {info[:100]!r}")
    return int(found[1])


async def _set_watch(link: Link, spec: SandboxSpec) -> None:
    limits = spec.limits
    await link.call(b"watch", b"%d" % (limits.memory_mb * MIB), b"%d" % limits.processes, reply_bytes=64, timeout_s=START_S)


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
