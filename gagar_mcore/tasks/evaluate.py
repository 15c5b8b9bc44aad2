"""Outcomes of the generator's own functions, in this process and bounded in lines run, so that it ends in any thread."""

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

from gagar_mcore.tasks.templates import Argument

MAX_LINES = 500


class _TooLong(BaseException):
    """Not an Exception: the evaluated code's own failures are caught as such, this one is not."""


@lru_cache(maxsize=8192)
def compile_function(source: str, name: str) -> Callable[..., Any]:
    """The function `name` of trusted source text."""
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def outcome(function: Callable[..., Any], arguments: Sequence[Argument]) -> str | None:
    """`repr` of the result, `err TYPE` of a raised exception, None after more than `MAX_LINES` lines."""
    fresh = [list(a) if isinstance(a, list) else a for a in arguments]
    previous = sys.gettrace()
    sys.settrace(_line_limit(MAX_LINES))
    try:
        return repr(function(*fresh))
    except _TooLong:
        return None
    except Exception as error:
        return f"err {type(error).__name__}"
    finally:
        sys.settrace(previous)


def _line_limit(lines: int) -> Callable[[FrameType, str, Any], Any]:
    left = lines

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            raise _TooLong
        return trace

    return trace
