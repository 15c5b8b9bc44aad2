"""`gagar credit`: the credit step alone, JSON lines in, JSON lines out."""

import json
from collections.abc import Iterable
from typing import Any, TextIO

from gagar_mcore.credit import CreditParams, VerdictError, compute_credit
from gagar_mcore.credit.length import MEASURES
from gagar_mcore.integrations.jsonl_schema import GroupLine, LineError, parse_group, parse_verdict
from gagar_mcore.records.types import Credit

BAD_LINES = 2


def run_credit(lines: Iterable[str], out: TextIO, err: TextIO, params: CreditParams) -> int:
    """Answer every group line on `out` before the next is read; the exit code is 0, or 2 where a line was bad.

    A bad line gets `line N: field: message` on `err` and no answer. A verdict that cannot be used is no bad line: its group
    gets the outcome advantages, with the reason in `fallback`. Blank lines are skipped, a byte order mark is tolerated.
    Text decoded with `errors="surrogateescape"` makes a line that is not UTF-8 a bad line rather than an end of the stream."""
    code = 0
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if not text.strip():
            continue
        try:
            answer = credit_group(parse_group(text), params)
        except LineError as error:
            code = BAD_LINES
            print(f"line {number}: {error}", file=err, flush=True)
        else:
            print(json.dumps(answer, allow_nan=False), file=out, flush=True)
    return code


def credit_group(group: GroupLine, params: CreditParams) -> dict[str, Any]:
    """The answer to one group, as JSON data. Raises LineError for a length that the length penalty misses."""
    if params.length_penalty:
        _require_lengths(group)
    if group.verdict is None:
        return _answer(group.group_id, compute_credit(group.trajectories, None, params))
    try:
        verdict = parse_verdict(group.verdict)
    except VerdictError as error:
        return _answer(group.group_id, compute_credit(group.trajectories, None, params, fallback=f"invalid: {error}"))
    return _answer(group.group_id, compute_credit(group.trajectories, verdict, params))


def _require_lengths(group: GroupLine) -> None:
    for index, trajectory in enumerate(group.trajectories):
        for measure in MEASURES if trajectory.valid else ():
            if getattr(trajectory, measure) is None:
                raise LineError(f"trajectories[{index}].{measure}: required and missing, the length penalty is on")


def _answer(group_id: str, credit: Credit) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "kept": credit.kept,
        "dropped": credit.dropped,
        "fallback": credit.fallback,
        "lambda": credit.lam,
        "capped": credit.capped,
        "advantages": credit.advantages,
    }
