"""The pool of this machine's sandboxes."""

import asyncio
import contextlib
import os

from gagar_sandbox.bwrap import base_of, check_spec
from gagar_sandbox.host import Host
from gagar_sandbox.local import LocalSandbox
from gagar_sandbox.mend import unavailable
from gagar_sandbox.start import Refused, start
from gagar_sandbox.types import SandboxLost, SandboxSpec

LIVE_PER_CORE = 4


class LocalPool:
    """Sandboxes on bubblewrap, at most `concurrency` of them alive (4 for each core where it is None).
    Raises SandboxUnavailable where there is no bwrap."""

    def __init__(self, concurrency: int | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: a pool needs room for one sandbox")
        self._host = Host.prepare()
        self._concurrency = concurrency or LIVE_PER_CORE * len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(self._concurrency)
        self._live: set[LocalSandbox] = set()
        self._without_overlay: set[int] = set()
        self._proven = False
        self._closed = False

    @property
    def overlays(self) -> bool:
        """Whether no overlay has been refused so far."""
        return not self._without_overlay

    @property
    def cgroup_version(self) -> int | None:
        """Of the control groups that bound memory and processes; None where PID 1 of each sandbox watches instead."""
        return self._host.cgroups.version if self._host.cgroups else None

    async def acquire(self, spec: SandboxSpec) -> LocalSandbox:
        """See SandboxPool.acquire. Raises ValueError or FileNotFoundError where the spec names what cannot be mounted."""
        check_spec(spec)
        await self._slots.acquire()
        try:
            if self._closed:
                raise SandboxLost("the pool is closed")
            sandbox = await self._start(spec)
        except BaseException:
            self._slots.release()
            raise
        self._proven = True
        self._live.add(sandbox)
        if self._closed:
            await sandbox.close()
            raise SandboxLost("the pool is closed")
        return sandbox

    async def close(self) -> None:
        """Close every sandbox. An acquire that still waits raises SandboxLost."""
        self._closed = True
        try:
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        finally:
            for _ in range(self._concurrency):
                await self._slots.acquire()  # until those that were being started are closed too
            self._host.close()
            for _ in range(self._concurrency):
                self._slots.release()

    async def _start(self, spec: SandboxSpec) -> LocalSandbox:
        """Under an overlay where user, bwrap, kernel and the base's file system allow one; else with a copy of the base."""
        status = base_of(spec).stat()
        # An overlay cannot copy up what belongs to a user whom the sandbox does not know.
        overlay = status.st_uid == os.geteuid() and status.st_dev not in self._without_overlay
        try:
            if overlay:
                with contextlib.suppress(Refused):
                    return await start(self._host, spec, overlay=True, on_close=self._forget)
            sandbox = await start(self._host, spec, overlay=False, on_close=self._forget)
        except Refused as error:
            if self._proven:
                raise  # a machine that has built one can; this is load, or the base
            raise unavailable(str(error)) from error
        except OSError as error:
            raise SandboxLost(f"cannot start a sandbox: {error}") from error
        if overlay:
            self._without_overlay.add(status.st_dev)
        return sandbox

    def _forget(self, sandbox: LocalSandbox) -> None:
        self._live.discard(sandbox)
        self._slots.release()
