"""The pool of a cluster's sandboxes."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from gagar_sandbox.kubernetes import keeper
from gagar_sandbox.kubernetes.api import REQUEST_S, Api
from gagar_sandbox.kubernetes.errors import ApiError
from gagar_sandbox.kubernetes.keeper import Mismatch
from gagar_sandbox.kubernetes.live import LivePod
from gagar_sandbox.kubernetes.manifest import selector
from gagar_sandbox.kubernetes.sandbox import PodSandbox
from gagar_sandbox.kubernetes.settings import PodSettings, PoolSettings
from gagar_sandbox.kubernetes.shape import Shape
from gagar_sandbox.kubernetes.shelf import Shelf
from gagar_sandbox.kubernetes.source import PodSource
from gagar_sandbox.kubernetes.starting import until_ready
from gagar_sandbox.kubernetes.watching import PodWatch
from gagar_sandbox.types import SandboxLost, SandboxSpec, SandboxUnavailable

TRIES = 3


class KubernetesPool:
    """Sandboxes in pods, used again once they have been seen to be as they were. `counts`: pods `started`, starts that
    `failed`, sandboxes in pods used before (`reused`), pods whose files were not what they must be (`quarantined`) and pods that
    could not be deleted (`left`). Made by `open_pool`."""

    def __init__(self, api: Api, source: PodSource, pods: PodSettings, settings: PoolSettings) -> None:
        self.api = api
        self.counts: Counter[str] = Counter()
        self._source = source
        self._pods = pods
        self._settings = settings
        self._watch = PodWatch(api, selector(pods))
        self._execs = asyncio.Semaphore(settings.execs)
        self._shelves: dict[Shape, Shelf] = {}
        self._alive: set[str] = set()
        self._live: set[PodSandbox] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def summary(self) -> str:
        """What became of the pods, and what it took of the API server, in one line."""
        told = [f"{count} {what}" for what, count in self.counts.items() if count]
        return ", ".join([*told, f"{self.api.writes} writes", f"{self.api.retries.total()} requests tried again"])

    async def start(self) -> None:
        """Remove what an earlier process of this run left. Raises SandboxUnavailable where the cluster refuses us."""
        try:
            await self._reap()
        except ApiError as error:
            raise SandboxUnavailable(f"the cluster cannot be used: {error}") from error
        self._watch.start()
        self._background(self._tidy())

    async def acquire(self, spec: SandboxSpec) -> PodSandbox:
        """See SandboxPool.acquire. Raises ValueError or FileNotFoundError where no pod can be what the spec asks for."""
        shape = Shape.of(spec, self._pods.image)
        shelf = self._shelves.setdefault(shape, Shelf(shape, self._settings.spare))
        tries = 0
        while True:
            pod = await self._take(shelf)
            tries += 1
            try:
                return await self._prepare(pod, spec)
            except BaseException as error:
                self.counts["quarantined"] += isinstance(error, Mismatch)
                await asyncio.shield(self._put_away(shelf, pod))
                if tries == TRIES or not isinstance(error, SandboxLost) or self._closed:
                    raise

    async def close(self) -> None:
        """Close every sandbox and delete every pod of this run. Cancelled, it goes on by itself. Raises SandboxLost where some
        could not be deleted."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    @property
    def _closed(self) -> bool:
        return self._closing is not None

    async def _close(self) -> None:
        self.api.stop_creating()
        for shelf in self._shelves.values():
            while shelf.waiting:
                shelf.fail(SandboxLost("the pool is closed"))
        try:
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)), return_exceptions=True)
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._reap()
        except ApiError as error:
            raise SandboxLost(f"pods may be left, until their deadline ends them: {error}") from error
        finally:
            await self._watch.close()
            await self.api.close()

    async def _take(self, shelf: Shelf) -> LivePod:
        """A ready pod, counted as busy."""
        if self._closed:
            raise SandboxLost("the pool is closed")
        pod = shelf.take()
        while pod is not None and pod.ended:
            self._background(self._delete(pod.name))
            pod = shelf.take()
        if pod is None:
            pod = await self._wait(shelf)
        shelf.busy += 1
        self._refill()
        return pod

    async def _wait(self, shelf: Shelf) -> LivePod:
        place: asyncio.Future[LivePod] = asyncio.get_running_loop().create_future()
        shelf.waiting.append(place)
        self._refill()
        try:
            async with asyncio.timeout(self._settings.acquire_s):
                return await place
        except BaseException as error:
            if place.done() and not place.cancelled() and place.exception() is None:
                shelf.put(place.result())  # it came as we were leaving
            if isinstance(error, TimeoutError):
                raise SandboxLost(f"no pod has come free within {self._settings.acquire_s:.0f} s") from error
            raise
        finally:
            shelf.leave(place)

    async def _prepare(self, pod: LivePod, spec: SandboxSpec) -> PodSandbox:
        try:
            base = await keeper.prepare(pod, spec)
        except OSError as error:
            raise SandboxLost(f"pod {pod.pod} cannot hold the files of a sandbox: {error}") from error
        if self._closed:
            raise SandboxLost("the pool is closed")
        if pod.shape.base_from_image:
            pod.digest = base
        self.counts["reused"] += pod.uses > 0
        pod.uses += 1
        sandbox = PodSandbox(pod, base, self._give_back)
        self._live.add(sandbox)
        return sandbox

    async def _give_back(self, sandbox: PodSandbox) -> None:
        """A sandbox's own close: the pod is used again where it is seen to be clean."""
        pod = sandbox.pod
        shelf = self._shelves[pod.shape]
        again = self._may_serve(pod) and not (self._closed or sandbox.lost or pod.ended)
        clean = False
        try:
            if again:
                await keeper.clean(pod, sandbox.base)
                clean = not self._closed
        except (SandboxLost, OSError) as error:
            self.counts["quarantined"] += not pod.ended and isinstance(error, Mismatch | OSError)
        finally:
            self._live.discard(sandbox)
            if clean:
                shelf.busy -= 1
                shelf.put(pod)
                self._refill()
            else:
                await self._put_away(shelf, pod)

    def _may_serve(self, pod: LivePod) -> bool:
        """Whether another sandbox may be in it: one that has long to live."""
        young = time.monotonic() - pod.begun < self._pods.lifetime_s / 2
        return self._pods.read_only_root and pod.uses < self._settings.uses and young

    async def _put_away(self, shelf: Shelf, pod: LivePod) -> None:
        await self._delete(pod.name)
        shelf.busy -= 1
        self._refill()

    def _refill(self) -> None:
        """Start what is wanted, as far as there is room; where there is none, an idle pod of another shape makes room."""
        if self._closed:
            return
        for shelf in self._shelves.values():
            for _ in range(shelf.wanted):
                if len(self._alive) >= self._settings.concurrency:
                    if shelf.waiting:
                        self._make_room(shelf)
                    break
                name = f"gagar-{shelf.shape.id}-{secrets.token_hex(6)}"
                self._alive.add(name)
                task = self._background(self._start(shelf, name))
                shelf.starting.add(task)
                task.add_done_callback(shelf.starting.discard)

    def _make_room(self, needy: Shelf) -> None:
        for shelf in self._shelves.values():
            if shelf is not needy and shelf.idle:
                pod, _ = shelf.idle.pop(0)
                self._background(self._delete(pod.name))
                return

    async def _start(self, shelf: Shelf, name: str) -> None:
        self._watch.expect(name)
        creating = asyncio.create_task(self._source.create(shelf.shape, name))
        try:
            await asyncio.shield(creating)
            state = await until_ready(self._watch, name, self._settings)
        except Exception as error:
            self.counts["failed"] += 1
            shelf.fail(_told(error))  # this task has nobody else to tell
            await self._delete(name)
        except asyncio.CancelledError:
            # The pool is closing, and deletes what there is once this has ended: nothing may be created after that.
            await asyncio.wait({creating}, timeout=REQUEST_S)
            if not creating.cancel():
                creating.exception()  # else it would be complained of that nobody asks for it
            raise
        else:
            self.counts["started"] += 1
            shelf.put(LivePod(name, state.pod, shelf.shape, self.api, self._watch, self._execs))

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(self._settings.idle_s / 4)
            for shelf in self._shelves.values():
                for pod in shelf.stale(self._settings.idle_s):
                    await self._delete(pod.name)

    async def _delete(self, name: str) -> None:
        """What cannot be deleted now is deleted when the pool closes, which deletes all there is."""
        try:
            if not self._closed:
                await self._source.delete(name)
        except ApiError:
            self.counts["left"] += 1
        self._watch.forget(name)
        self._alive.discard(name)
        self._refill()

    async def _reap(self) -> None:
        names = await self._source.names()
        await asyncio.gather(*(self._source.delete(name) for name in names))
        await self._source.clear()

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _told(error: Exception) -> Exception:
    """As who asks for a sandbox is told."""
    if not isinstance(error, ApiError):
        return error
    return SandboxLost(str(error)) if error.passing else SandboxUnavailable(f"the API server refuses the pod: {error}")
