"""What happened in a trajectory, one line a turn, made by rule."""

from gagar_mcore.grading.text import quoted
from gagar_mcore.records.types import Trajectory, Turn

ACTION_CHARACTERS = 160
OBSERVATION_CHARACTERS = 120


def summarize(trajectory: Trajectory) -> str:
    """A heading, then one line a turn. Text of the policy appears in quotes only."""
    refused = sum(not turn.ok for turn in trajectory.turns)
    heading = f"{len(trajectory.turns)} turns, {refused} malformed or refused, ended: {trajectory.end_reason}"
    return "\n".join([heading, *map(_line, trajectory.turns)]) + "\n"


def _line(turn: Turn) -> str:
    outcome = "ok" if turn.ok else "refused" if turn.tool else "malformed"
    seen = (
        f"{len(turn.observation)} characters: {quoted(turn.observation, OBSERVATION_CHARACTERS)}"
        if turn.observation
        else "nothing"
    )
    name = quoted(turn.tool, 40) if turn.tool else "no tool"
    return f"turn {turn.index}: {name} {outcome}; action {quoted(turn.action, ACTION_CHARACTERS)}; saw {seen}"
