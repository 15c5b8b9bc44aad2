"""The pool of this machine's sandboxes."""

import asyncio
import contextlib
import functools
import os
from pathlib import Path

from gagar_sandbox.bwrap import check_spec
from gagar_sandbox.cell import Cell, NoOverlay
from gagar_sandbox.host import Host
from gagar_sandbox.images import Image, ImageStore, default_store
from gagar_sandbox.local import ENVIRONMENT, LocalSandbox
from gagar_sandbox.mend import unavailable
from gagar_sandbox.shelf import Shelf
from gagar_sandbox.template import Refused
from gagar_sandbox.templates import Held, Templates
from gagar_sandbox.types import SandboxLost, SandboxSpec, SandboxUnavailable

LIVE_PER_CORE = 4


class LocalPool:
    """Sandboxes on bubblewrap, at most `concurrency` of them alive (4 for each core where it is None). Without `overlay` every
    base is copied. `images` is where the files of `SandboxSpec.image` are, see ImageStore. Raises SandboxUnavailable where
    there is no bwrap."""

    def __init__(self, concurrency: int | None = None, *, overlay: bool = True, images: Path | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: a pool needs room for one sandbox")
        self._host = Host.prepare()
        self._concurrency = concurrency or LIVE_PER_CORE * len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(self._concurrency)
        self._templates = Templates(self._host)
        self._shelf = Shelf(self._templates.give_back)
        self._live: set[LocalSandbox] = set()
        self._overlay = overlay
        self._images = images
        self._without_overlay: set[int] = set()
        self._proven = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def overlays(self) -> bool:
        """Whether no overlay has been refused so far."""
        return self._overlay and not self._without_overlay

    @property
    def cgroup_version(self) -> int | None:
        """Of the control groups that bound memory and processes; None where PID 1 of each sandbox watches instead."""
        return self._host.cgroups.version if self._host.cgroups else None

    async def acquire(self, spec: SandboxSpec) -> LocalSandbox:
        """See SandboxPool.acquire. Raises ValueError or FileNotFoundError where the spec names what cannot be mounted."""
        check_spec(spec)
        image = ImageStore(self._images or default_store()).find(spec.image) if spec.image else None
        await self._slots.acquire()
        try:
            self._check_open()
            sandbox = await self._start(spec, image)
        except BaseException:
            self._slots.release()
            raise
        self._proven = True
        self._live.add(sandbox)
        try:
            await self._templates.trim()
            self._check_open()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def close(self) -> None:
        """Close every sandbox. An acquire that still waits raises SandboxLost. Cancelled, it goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with contextlib.AsyncExitStack() as last:
            last.callback(self._host.close)
            last.push_async_callback(self._templates.close)
            last.push_async_callback(self._shelf.close)
            last.push_async_callback(self._all_free)
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))

    async def _all_free(self) -> None:
        """Until those that were being started are closed too."""
        for _ in range(self._concurrency):
            await self._slots.acquire()
        for _ in range(self._concurrency):
            self._slots.release()

    def _check_open(self) -> None:
        if self._closing:
            raise SandboxLost("the pool is closed")

    async def _start(self, spec: SandboxSpec, image: Image | None) -> LocalSandbox:
        root = image.root if image else None
        try:
            held = await self._templates.take(spec, root)
            try:
                cell = await self._cell(held, spec, root)
            except BaseException:
                self._templates.give_back(held)
                raise
        except Refused as error:
            if self._proven:
                raise  # a machine that has built one can; this is load, or the base
            raise unavailable(str(error)) from error
        except OSError as error:
            raise SandboxLost(f"cannot start a sandbox: {error}") from error
        environment = {**ENVIRONMENT, "USER": "root", **image.environment} if image else ENVIRONMENT
        return LocalSandbox(cell, spec.limits, functools.partial(self._closed_one, held), environment)

    async def _cell(self, held: Held, spec: SandboxSpec, image: Path | None) -> Cell:
        """Under an overlay where user, kernel and the base's file system allow one; else with a copy of the base."""
        status = (spec.base or image or Path("/")).stat()
        # An overlay cannot copy up what belongs to a user whom the sandbox does not know.
        if self._overlay and status.st_uid == os.geteuid() and status.st_dev not in self._without_overlay:
            try:
                rested = await self._shelf.take(held, spec.limits)
                if rested:
                    self._templates.give_back(held)  # it has held its template all the time
                new = rested is None
                return await self._started(rested or Cell(self._host, spec, held.template, image, overlay=True), new)
            except NoOverlay:
                self._without_overlay.add(status.st_dev)
        if image:
            raise SandboxUnavailable(f"image {spec.image}: needs overlay mounts, and base and image to be of this user")
        return await self._started(Cell(self._host, spec, held.template, None, overlay=False), new=True)

    async def _started(self, cell: Cell, new: bool) -> Cell:
        try:
            if new:
                await cell.open()
            await cell.start()
        except BaseException:
            await asyncio.shield(cell.close())
            raise
        return cell

    async def _closed_one(self, held: Held, sandbox: LocalSandbox, cell: Cell) -> None:
        """Keep what makes the next sandbox of these files cheap, and free all else."""
        try:
            await self._shelf.put(held, cell)
        finally:
            self._live.discard(sandbox)
            self._slots.release()
