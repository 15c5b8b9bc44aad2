"""A pod that runs, and what may be said to it however often the connection breaks."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gagar_sandbox.inside.frames import pack
from gagar_sandbox.kubernetes.api import Api
from gagar_sandbox.kubernetes.backoff import Backoff
from gagar_sandbox.kubernetes.call import Call, CallFailed, CallLost, call
from gagar_sandbox.kubernetes.errors import ApiError
from gagar_sandbox.kubernetes.manifest import MAIN
from gagar_sandbox.kubernetes.shape import Shape
from gagar_sandbox.kubernetes.state import PodState
from gagar_sandbox.kubernetes.watching import PodWatch
from gagar_sandbox.types import SandboxLost

FAILURES = 6  # of our program in a pod, before it is given up; a container that has just begun may need some
REASON_S = 5.0  # so long after a pod has ended its watch tells why
OVERHEAD_BYTES = 4096

T = TypeVar("T")


class PodLost(SandboxLost):
    """The pod has ended; `state` is the last that is known of it."""

    def __init__(self, state: PodState) -> None:
        super().__init__(str(state))
        self.state = state


@dataclass
class LivePod:
    """`name` is the pool's, `pod` the cluster's. `uses`: sandboxes that it was or is. `digest`: of the base in its image, once
    known. `begun`: when it was first seen to run, by time.monotonic."""

    name: str
    pod: str
    shape: Shape
    api: Api
    watch: PodWatch
    execs: asyncio.Semaphore
    uses: int = 0
    digest: str | None = None
    last_id: int = 0
    begun: float = field(default_factory=time.monotonic)

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    @property
    def ended(self) -> bool:
        return _has_ended(self.watch.state(self.name))

    async def converse(
        self,
        container: str,
        talk: Callable[[Call], Awaitable[T]],
        *,
        timeout_s: float,
        reply_bytes: int = OVERHEAD_BYTES,
        urgent: bool = False,
    ) -> T:
        """What `talk` gives. It is begun anew where the connection breaks, so what it asks for must bear being asked twice.
        `urgent`: not after all that others have asked. Raises SandboxLost, or what the container says."""
        async with contextlib.nullcontext() if urgent else self.execs:
            backoff = Backoff(timeout_s, most_s=2.0)
            failures = 0
            while True:
                try:
                    left_s = max(backoff.left_s, 0.0)
                    async with call(self.api, self.pod, container, reply_bytes + OVERHEAD_BYTES, left_s) as conversation:
                        return await talk(conversation)
                except (ApiError, CallLost, TimeoutError) as error:
                    # A command that kills who asks for it is ended by process 1 at its deadline, and nothing kills after that.
                    failures += isinstance(error, CallFailed) and not error.killed
                    final = failures == FAILURES or (isinstance(error, ApiError) and not error.passing)
                    await self._bear(error, final, backoff)

    async def cancel(self, identity: int, timeout_s: float) -> None:
        """End that command, or have it never begin; nothing else is to run. Raises SandboxLost."""
        request = pack(b"cancel", b"%d" % identity)

        async def talk(conversation: Call) -> None:
            await conversation.send(request)
            await conversation.receive()

        await self.converse(MAIN, talk, timeout_s=timeout_s, urgent=True)

    async def kill_all(self, timeout_s: float) -> None:
        """Every process that commands have left. Raises SandboxLost."""
        await self.cancel(self.next_id(), timeout_s)

    async def _bear(self, error: Exception, final: bool, backoff: Backoff) -> None:
        """Raises SandboxLost where there is nothing left to hope for."""
        after = error.retry_after_s if isinstance(error, ApiError) else None
        nap = None if final else backoff.next_s(after or 0.0)
        state = await self.watch.until(self.name, _has_ended, REASON_S if nap is None else nap)
        if state is None:
            raise SandboxLost(f"pod {self.pod} was deleted") from error
        if _has_ended(state):
            raise PodLost(state) from error
        if nap is None:
            raise SandboxLost(f"pod {self.pod}: {str(error) or 'no answer in time'}") from error


def _has_ended(state: PodState | None) -> bool:
    """None is a pod that its pool has forgotten."""
    return state is None or state.phase == "ended"
