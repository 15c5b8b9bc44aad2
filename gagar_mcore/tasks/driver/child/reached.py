"""What code of the repository reaches for that could change how tests run or find what the runner holds back.

Hooks of the interpreter's audit see it before it takes effect and cannot be taken away again."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

EVENTS = frozenset(
    (
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback", "sys._current_frames"),
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "ctypes.cdata"),
    )
)


def watch(tell: Callable[[dict[str, Any]], None], honest: Callable[[object], bool]) -> None:
    """Tell each kind of event once that happens while other code than of the runner, the suite and the environment is at work."""
    said: set[str] = set()
    frame_of = sys._getframe

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        name = _named(event, arguments)
        if name is None or name in said:
            return
        frame: FrameType | None = frame_of(1)
        while frame is not None:
            if not honest(frame.f_code):
                said.add(name)
                tell({"reached": name})
                return
            frame = frame.f_back

    sys.addaudithook(hook)


def _named(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What to call an event; None where anyone may do it."""
    if event in EVENTS:
        return event
    if event == "object.__setattr__" and arguments[1] == "__code__":
        return "function.__code__"
    if event == "ctypes.dlsym" and str(arguments[1]).startswith(("Py", "_Py")):
        return "ctypes.pythonapi"
    if event == "open" and isinstance(arguments[0], str | bytes) and os.path.basename(os.fsdecode(arguments[0])) == "mem":
        return "/proc/self/mem"
    return None
