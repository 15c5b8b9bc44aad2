"""What one sandbox is made of on this machine: its keeper, the PID 1 of now, its control group."""

import asyncio
import contextlib
import os
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
from gagar_sandbox.types import Limits, SandboxLost, SandboxSpec

COPY_S = 300.0
MESSAGE_BYTES = 4096


class NoOverlay(Refused):
    """The kernel takes no overlay on these files."""


class Cell:
    """`open` it once. From `start` to `rest` it is one sandbox, to whose PID 1 `link` leads, and then it may be the next one.
    After any failure only `close` is of use."""

    link: Link
    leaf: Leaf | None = None

    def __init__(self, host: Host, spec: SandboxSpec, template: Template, image: Path | None, overlay: bool) -> None:
        self._host = host
        self._spec = spec
        self._image = image
        self._overlay = overlay
        self._oom_kills = 0
        self._asking = self._renewing = False
        self._control = template.keeper()
        self._keeper: Process | None = None
        self._size = spec.limits.disk_mb * MIB

    @property
    def limits(self) -> Limits:
        return self._spec.limits

    @property
    def fit(self) -> bool:
        """Whether it may be used again: alive, and without a copy of its base, which might grow."""
        return self._overlay and not (self._asking or self._renewing) and self._keeper is not None and not self._keeper.ended

    async def open(self) -> None:
        """Have a keeper, in its control group: to move a process into one takes the kernel longer than all the rest."""
        if not self._overlay and self._spec.base:
            self._size += await asyncio.to_thread(_tree_bytes, self._spec.base)
        if self._host.cgroups:
            # What is written lies in memory too, and has a bound of its own. PID 1 and the keeper count as processes.
            self.leaf = self._host.cgroups.leaf(self.limits.memory_mb * MIB + self._size, self.limits.processes + 2)
        pid, self._keeper = await self._answer()
        if self.leaf:
            self.leaf.add(pid)
        await self._ask(b"become", b"0" if self._image else b"1000")

    async def start(self) -> None:
        """Raises NoOverlay, Refused, SandboxLost."""
        await self._enter(b"start", b"%d" % self._size, b"1" if self._overlay else b"0")

    async def snapshot(self) -> None:
        await self._renew(b"snapshot")

    async def reset(self) -> None:
        await self._renew(b"reset")

    async def rest(self) -> None:
        """End every process but the keeper, and free the disk."""
        await self._ask(b"rest")
        await self.link.close()

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

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed something here for want of memory since this was last asked."""
        if self.leaf is None:
            return False
        before, self._oom_kills = self._oom_kills, self.leaf.oom_kills()
        return self._oom_kills > before

    async def _renew(self, request: bytes) -> None:
        self._renewing = True  # and for ever where this fails
        await self.link.close()
        await self._enter(request)
        self._renewing = False

    async def _enter(self, *message: bytes) -> None:
        """Have the keeper start a PID 1, and that build the sandbox, which it is told before it is there."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            wanted = rlimits(self.limits, address_space=self.leaf is None)
            ours.send(pack(*request(self._spec, self._image, wanted, self._host.syscall_filter or b"")))
            pid, process = await self._ask(*message, descriptors=[theirs.fileno()])
            assert process is not None
            on_failure.callback(process.kill)
            self.link = await Link.open(ours, process)
            on_failure.pop_all()
        await self._built()
        if self.leaf is None:
            put_first(pid)
            watched = (b"%d" % (self.limits.memory_mb * MIB), b"%d" % self.limits.processes)
            await self.link.call(b"watch", *watched, reply_bytes=MESSAGE_BYTES, timeout_s=START_S)

    async def _built(self) -> None:
        match await self.link.reply(MESSAGE_BYTES, START_S if self._overlay else COPY_S):
            case [b"no overlay", reason]:
                raise NoOverlay(reason.decode(errors="replace"))
            case [b"failed", reason]:
                raise Refused(reason.decode(errors="replace"))

    async def _ask(self, *message: bytes, descriptors: Sequence[int] = ()) -> tuple[int, Process | None]:
        """The pid in the keeper's answer, and the process where there is one."""
        if self._asking:
            raise SandboxLost("the sandbox was left in the middle of a request")
        self._asking = True
        try:
            socket.send_fds(self._control, [pack(*message)], descriptors)
        except OSError as error:
            raise SandboxLost(f"the sandbox is closed: {error}") from error
        answer = await self._answer()
        self._asking = False
        return answer

    async def _answer(self) -> tuple[int, Process | None]:
        try:
            if not await readable(self._control.fileno(), START_S):
                raise SandboxLost(f"no sandbox was started within {START_S:.0f} s")
            reply, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        except OSError as error:
            raise SandboxLost(f"the sandbox is closed: {error}") from error
        match unpack(reply[4:]):
            case [b"ok", pid]:
                return int(pid), Process(descriptors[0]) if descriptors else None
            case [b"error", reason]:
                raise Refused(reason.decode(errors="replace"))
        raise SandboxLost("the keeper has died")


def _tree_bytes(root: Path) -> int:
    """Upper bound of what the tree takes on a tmpfs."""
    page = os.sysconf("SC_PAGE_SIZE")
    names = [os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files)]
    return sum(os.lstat(name).st_size + page for name in names)
