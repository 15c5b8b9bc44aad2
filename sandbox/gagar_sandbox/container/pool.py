"""The pool of this machine's containers."""

import asyncio
import contextlib
import shutil

from gagar_sandbox import owner
from gagar_sandbox.bwrap import check_mounts
from gagar_sandbox.container import command as line
from gagar_sandbox.container.command import ContainerSettings
from gagar_sandbox.container.engine import ask
from gagar_sandbox.container.sandbox import ENGINE_S, ContainerSandbox
from gagar_sandbox.types import SandboxLost, SandboxSpec, SandboxUnavailable


class ContainerPool:
    """At most `concurrency` containers at once. Raises SandboxUnavailable where there is no such engine."""

    def __init__(self, settings: ContainerSettings, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: a pool needs room for one sandbox")
        if shutil.which(settings.engine) is None:
            raise SandboxUnavailable(f"no {settings.engine}: install it, or let sandboxes run with sandbox.backend=local")
        self._settings = settings
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._live: set[ContainerSandbox] = set()
        self._reaping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def acquire(self, spec: SandboxSpec) -> ContainerSandbox:
        """See SandboxPool.acquire."""
        image = spec.image or self._settings.image
        if image is None:
            raise ValueError("image: neither the task nor sandbox.container names one")
        check_mounts(spec.read_only, ("/dev", "/proc"))
        if self._reaping is None or (self._reaping.done() and self._reaping.exception()):
            self._reaping = asyncio.create_task(self._reap())
        await asyncio.shield(self._reaping)
        await self._slots.acquire()
        sandbox = ContainerSandbox(self._settings, spec, image, owner.prefix(), self._forget)
        starting = asyncio.create_task(self._start(sandbox))
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait({starting})  # else a container might come after we have given up
            with contextlib.suppress(SandboxLost):  # there may be none
                await sandbox.close()
            raise
        return sandbox

    async def close(self) -> None:
        """Remove every container. An acquire that still waits raises SandboxLost. Cancelled, it goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        finally:
            for _ in range(self._concurrency):
                await self._slots.acquire()  # until those that were being started are closed too
            for _ in range(self._concurrency):
                self._slots.release()

    async def _start(self, sandbox: ContainerSandbox) -> None:
        if self._closing is None:
            await sandbox.start()
        if self._closing is not None:
            raise SandboxLost("the pool is closed")
        self._live.add(sandbox)

    async def _reap(self) -> None:
        """Remove what this run's dead controllers have left, and nobody else's."""
        listed = await ask(line.of_this_run(self._settings), ENGINE_S)
        rows = [row.split(" ", 1) for row in listed.splitlines()]
        dead = [container for container, made_by in rows if owner.is_dead(made_by)]
        if dead:
            await ask(line.remove(self._settings, dead), ENGINE_S)

    def _forget(self, sandbox: ContainerSandbox) -> None:
        self._live.discard(sandbox)
        self._slots.release()
