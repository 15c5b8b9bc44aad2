"""Tool sets by their name in a recipe."""

from gagar_mcore.agent.bash import BashTools
from gagar_mcore.agent.calls import CallFormat
from gagar_mcore.agent.compact import CompactTools
from gagar_mcore.agent.tools import ToolSet


def tool_set(name: str, calls: CallFormat, command_timeout_s: float = 10.0) -> ToolSet:
    """`compact` or `bash`; calls of the latter are written as `calls` says, and the timeout bounds one command of it. Raises
    ValueError for any other name."""
    match name:
        case "compact":
            return CompactTools()
        case "bash":
            return BashTools(command_timeout_s, calls)
        case _:
            raise ValueError(f"rollout.tools: no tool set {name!r}; choose compact or bash")
