"""Waiting for a pod to start, no longer than it may be worth."""

import time

from gagar_sandbox.kubernetes.settings import PoolSettings
from gagar_sandbox.kubernetes.state import PodState
from gagar_sandbox.kubernetes.watching import PodWatch
from gagar_sandbox.types import SandboxLost


async def until_ready(watch: PodWatch, name: str, settings: PoolSettings) -> PodState:
    """Raises SandboxLost where the pod will not run, or has not for as long as the reason that it gives is worth."""
    limits = {"ImagePull": settings.pull_s, "Unschedulable": settings.unschedulable_s}
    began = time.monotonic()
    first_seen: dict[str, float] = {}
    while True:
        state = watch.state(name)
        if state is not None and state.phase == "ready":
            return state
        if state is not None and state.phase == "ended":
            raise SandboxLost(str(state))
        reason = state.reason if state else ""
        since = first_seen.setdefault(reason, time.monotonic())
        left = min(began + settings.start_s, since + limits.get(reason, settings.start_s)) - time.monotonic()
        if left <= 0:
            raise SandboxLost(f"{state or f'pod {name}: not seen'} for {time.monotonic() - began:.0f} s")
        await watch.until(name, lambda now, before=state: now != before, left)  # type: ignore[misc]
