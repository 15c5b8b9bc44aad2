"""`reward.json` and `reward.txt`: what a task's own tests say that a patch is worth."""

import json
import math

from gagar_mcore.verify.report import ReportError

REWARD_JSON = "/logs/verifier/reward.json"
REWARD_TEXT = "/logs/verifier/reward.txt"
MAX_REWARD_BYTES = 1 << 16


def parse_reward_json(data: bytes) -> float:
    """The one number, or that under `reward`, or else the least of several. Raises ReportError."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"reward.json: {error}") from error
    values = said if isinstance(said, dict) else {"reward": said}
    numbers = [_number(values["reward"])] if "reward" in values else [_number(value) for value in values.values()]
    if not numbers:
        raise ReportError("reward.json: names no reward")
    return min(numbers)


def parse_reward_text(data: bytes) -> float:
    """Raises ReportError."""
    try:
        return _number(float(data.decode("ascii")))
    except ValueError as error:
        raise ReportError(f"reward.txt: {error}") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ReportError(f"a reward must be a finite number, not {str(value)[:40]!r}")
    return float(value)
