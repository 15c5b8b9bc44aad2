"""Tool sets by their name in a recipe."""

from gagar_mcore.agent.bash import BashTools
from gagar_mcore.agent.compact import CompactTools
from gagar_mcore.agent.tools import ToolSet


def tool_set(name: str, command_timeout_s: float = 10.0) -> ToolSet:
    """`compact` or `bash`; the timeout bounds one command of the latter. Raises ValueError for any other name."""
    match name:
        case "compact":
            return CompactTools()
        case "bash":
            return BashTools(command_timeout_s)
        case _:
            raise ValueError(f"rollout.tools: no tool set {name!r}; choose compact or bash")
