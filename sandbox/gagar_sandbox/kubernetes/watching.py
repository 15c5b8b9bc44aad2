"""One watch that all who wait for a pod share."""

import asyncio
from collections.abc import Callable

from gagar_sandbox.kubernetes.api import Api, Json
from gagar_sandbox.kubernetes.backoff import Backoff
from gagar_sandbox.kubernetes.errors import ApiError
from gagar_sandbox.kubernetes.state import PodState, read_state

GONE = 410


class PodWatch:
    """The last known state of every pod that is expected. Times of the server are never compared with ours."""

    def __init__(self, api: Api, selector: str) -> None:
        self._api = api
        self._selector = selector
        self._states: dict[str, PodState | None] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(lambda task: self._wake(*self._waiting))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def expect(self, name: str) -> None:
        """Have its state told from now on, until it is forgotten."""
        self._states.setdefault(name, None)

    def state(self, name: str) -> PodState | None:
        """None: not seen yet, or not expected."""
        return self._states.get(name)

    def forget(self, name: str) -> None:
        self._states.pop(name, None)

    async def until(self, name: str, settled: Callable[[PodState | None], bool], timeout_s: float) -> PodState | None:
        """The pod's state once it is `settled`, or as it is when the time has run out or the watch is closed. Raises what the
        watch ended with, where it did."""
        changed = asyncio.Event()
        self._waiting.setdefault(name, set()).add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not settled(self._states.get(name)):
                    if self._task is not None and self._task.done():
                        if self._task.cancelled():
                            break  # nobody will tell
                        self._task.result()
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting[name].discard(changed)
            if not self._waiting[name]:
                del self._waiting[name]
        return self._states.get(name)

    async def _run(self) -> None:
        version = ""
        backoff = Backoff(float("inf"))
        while True:
            asked_to_wait = 0.0
            try:
                version = version or await self._list()
                async for event in self._api.watch(self._selector, version):
                    version = self._take(event)
                    backoff = Backoff(float("inf"))
            except ApiError as error:
                version = "" if error.status == GONE else version
                asked_to_wait = error.retry_after_s or 0.0
            await backoff.nap(asked_to_wait)

    async def _list(self) -> str:
        pods, version = await self._api.find("Pod", "v1", self._selector)
        states = {state.name: state for state in map(read_state, pods)}
        for name, known in list(self._states.items()):
            if known is not None and name not in states and known.phase != "ended":
                self._tell(PodState(name, known.pod, "ended", "Deleted", "it had gone when the pods were listed again"))
        for state in states.values():
            self._tell(state)
        return version

    def _take(self, event: Json) -> str:
        """The resource version of the event. Raises ApiError where it is an error."""
        thing = event["object"]
        if event["type"] == "ERROR":
            raise ApiError(thing.get("code", 0), thing.get("reason", ""), thing.get("message", ""))
        if event["type"] != "BOOKMARK":
            state = read_state(thing)
            if event["type"] == "DELETED" and state.phase != "ended":
                state = PodState(state.name, state.pod, "ended", "Deleted")
            self._tell(state)
        return str(thing["metadata"]["resourceVersion"])

    def _tell(self, state: PodState) -> None:
        known = self._states.get(state.name)
        if state.name not in self._states or (known is not None and known.phase == "ended"):
            return  # nobody asks for it any more; and the first reason is the one that counts
        self._states[state.name] = state
        self._wake(state.name)

    def _wake(self, *names: str) -> None:
        for name in names:
            for event in self._waiting.get(name, ()):
                event.set()
