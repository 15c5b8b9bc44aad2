"""The pool of this machine's sandboxes."""

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path

from gagar_sandbox.bwrap import check_spec, find_bwrap
from gagar_sandbox.local import LocalSandbox
from gagar_sandbox.start import start
from gagar_sandbox.types import SandboxLost, SandboxSpec

LIVE_PER_CORE = 4


class LocalPool:
    """Sandboxes on bubblewrap, at most `concurrency` of them alive (4 for each core where it is None)."""

    def __init__(self, concurrency: int | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: a pool needs room for one sandbox")
        self._slots = asyncio.Semaphore(concurrency or LIVE_PER_CORE * len(os.sched_getaffinity(0)))
        self._live: set[LocalSandbox] = set()
        self._closed = False
        self._bwrap = find_bwrap()
        self._hold = Path(tempfile.mkdtemp(prefix="gagar-hold-"))

    async def acquire(self, spec: SandboxSpec) -> LocalSandbox:
        """See SandboxPool.acquire. Raises ValueError or FileNotFoundError where the spec names what cannot be mounted."""
        check_spec(spec)
        await self._slots.acquire()
        try:
            if self._closed:
                raise SandboxLost("the pool is closed")
            # An overlay cannot copy up what belongs to a user whom the sandbox does not know.
            overlay = spec.base.stat().st_uid == os.geteuid()
            sandbox = await start(self._bwrap, spec, self._hold if overlay else None, self._forget)
        except BaseException:
            self._slots.release()
            raise
        self._live.add(sandbox)
        return sandbox

    async def close(self) -> None:
        """Close every sandbox. An acquire that still waits raises SandboxLost."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        with contextlib.suppress(FileNotFoundError):
            self._hold.rmdir()

    def _forget(self, sandbox: LocalSandbox) -> None:
        self._live.discard(sandbox)
        self._slots.release()
