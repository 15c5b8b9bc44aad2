"""SWE-agent's own account of its steps, beside the messages.

Fields: `TrajectoryStep` in https://github.com/SWE-agent/SWE-agent/blob/main/sweagent/types.py
"""

from typing import Any

from gagar_mcore.integrations.imports.data import object_at, present, require_text, take_text
from gagar_mcore.records.imported import Step


def read_step(data: Any, where: str) -> Step:
    """Raises SourceError naming the field."""
    rest = object_at(data, where)
    action = require_text(rest, "action", f"{where}.action")
    observation = require_text(rest, "observation", f"{where}.observation")
    return Step(action, observation, take_text(rest, "thought"), take_text(rest, "response"), _take_seconds(rest), rest)


def write_step(step: Step) -> dict[str, Any]:
    """The step as its source has it."""
    told = present(thought=step.thought, response=step.response, execution_time=step.seconds)
    return {"action": step.action, "observation": step.observation, **told, **step.extra}


def _take_seconds(data: dict[str, Any]) -> float | int | None:
    seconds = data.get("execution_time")
    if isinstance(seconds, bool) or not isinstance(seconds, float | int):
        return None
    found: float | int = data.pop("execution_time")
    return found
