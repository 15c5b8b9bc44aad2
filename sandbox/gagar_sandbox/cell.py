"""What one sandbox is made of on this machine: its keeper, the PID 1 of now, its control group."""

import asyncio
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from gagar_sandbox.bwrap import MIB, request
from gagar_sandbox.cgroup import Leaf
from gagar_sandbox.host import Host
from gagar_sandbox.inside.frames import pack, unpack
from gagar_sandbox.limits import put_first, rlimits
from gagar_sandbox.link import STOP_S, Link
from gagar_sandbox.process import Process, readable
from gagar_sandbox.template import START_S, Refused, Template
from gagar_sandbox.types import SandboxLost, SandboxSpec

COPY_S = 300.0
MESSAGE_BYTES = 4096


class NoOverlay(Refused):
    """The kernel takes no overlay on these files."""


class Cell:
    """After `start`, `link` leads to a PID 1 that takes requests. After any failure only `close` is of use."""

    link: Link

    def __init__(self, host: Host, spec: SandboxSpec, template: Template, image: Path | None, overlay: bool) -> None:
        self.leaf: Leaf | None = None
        self._host = host
        self._spec = spec
        self._image = image
        self._overlay = overlay
        self._control = template.keeper()
        self._keeper: Process | None = None

    async def start(self) -> None:
        """Raises NoOverlay, Refused, SandboxLost."""
        size = self._spec.limits.disk_mb * MIB
        if not self._overlay and self._spec.base:
            size += await asyncio.to_thread(_tree_bytes, self._spec.base)
        limits = self._spec.limits
        if self._host.cgroups:
            # What is written lies in memory too, and has a bound of its own.
            self.leaf = self._host.cgroups.leaf(limits.memory_mb * MIB + size, limits.processes + 1)
        user = b"0" if self._image else b"1000"
        await self._enter([b"start", user, b"%d" % size, b"1" if self._overlay else b"0"])

    async def snapshot(self) -> None:
        await self._renew([b"snapshot"])

    async def reset(self) -> None:
        await self._renew([b"reset"])

    async def close(self) -> None:
        """The end of its input ends the keeper, and with it PID 1 and all else. Raises SandboxLost where it does not."""
        self._control.close()
        try:
            if hasattr(self, "link"):
                await self.link.close()
            if self._keeper and not await self._keeper.wait(STOP_S):
                self._keeper.kill()
                await self._keeper.wait(STOP_S)
        finally:
            if self.leaf is not None:
                await asyncio.to_thread(self.leaf.remove)

    async def _renew(self, message: Sequence[bytes]) -> None:
        before = self.link
        async with before.turn:
            await before.close()
            await self._enter(message)

    async def _enter(self, message: Sequence[bytes]) -> None:
        """Have the keeper start a PID 1, bound it, and have it build the sandbox."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [pack(*message)], [theirs.fileno()])
            pid, process = await self._started()
            self.link = await Link.open(ours, process)
            if self.leaf:
                self.leaf.add(pid)
            else:
                put_first(pid)
        except OSError as error:
            ours.close()
            raise SandboxLost(f"no sandbox was started: {error}") from error
        except BaseException:
            ours.close()
            raise
        await self._furnish()

    async def _started(self) -> tuple[int, Process]:
        if not await readable(self._control.fileno(), START_S):
            raise SandboxLost(f"no sandbox was started within {START_S:.0f} s")
        reply, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 2)
        match unpack(reply[4:]):
            case [b"ok", pid] if len(descriptors) == 2 and re.fullmatch(rb"[0-9]+", pid):
                if self._keeper is None:
                    self._keeper = Process(descriptors[1])
                else:
                    os.close(descriptors[1])
                return int(pid), Process(descriptors[0])
            case [b"error", reason]:
                raise Refused(reason.decode(errors="replace"))
        raise SandboxLost("the keeper has died")

    async def _furnish(self) -> None:
        limits = self._spec.limits
        wanted = rlimits(limits, address_space=self.leaf is None)
        words = request(self._spec, self._image, wanted, self._host.syscall_filter or b"")
        match await self.link.call(*words, reply_bytes=MESSAGE_BYTES, timeout_s=START_S if self._overlay else COPY_S):
            case [b"no overlay", reason]:
                raise NoOverlay(reason.decode(errors="replace"))
            case [b"failed", reason]:
                raise Refused(reason.decode(errors="replace"))
        if self.leaf is None:
            watched = (b"%d" % (limits.memory_mb * MIB), b"%d" % limits.processes)
            await self.link.call(b"watch", *watched, reply_bytes=MESSAGE_BYTES, timeout_s=START_S)


def _tree_bytes(root: Path) -> int:
    """Upper bound of what the tree takes on a tmpfs."""
    page = os.sysconf("SC_PAGE_SIZE")
    names = [os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files)]
    return sum(os.lstat(name).st_size + page for name in names)
