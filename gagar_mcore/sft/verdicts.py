"""How far generated verdicts agree with those that were held out."""

import json
import math
from collections.abc import Sequence
from typing import Any

from gagar_mcore.agent.calls import CallError, CallFormat, after_thinking, parse_calls
from gagar_mcore.credit import CreditParams, VerdictError
from gagar_mcore.grading.agreement import agreement
from gagar_mcore.grading.form import VerdictForm, read_form
from gagar_mcore.records.types import Verdict


def verdict_agreement(pairs: Sequence[tuple[str, str]], calls: CallFormat, params: CreditParams) -> dict[str, float]:
    """Of the pairs whose held-out answer hands in a verdict: `verdicts` how many, `verdicts_usable` the share where what is said
    instead hands in one on the same candidates, and of these `verdict_tau` and `verdict_tiers` as `Agreement` has them, where
    they can be told. Citations are not looked up: there is no workspace. Nothing where no answer hands in a verdict."""
    held = [(expected, said) for text, said in pairs if (expected := read_answer(text, calls)) is not None]
    if not held:
        return {}
    both = [(expected, read_answer(said, calls)) for expected, said in held]
    usable = [[one, other] for one, other in both if other is not None and one.grades.keys() == other.grades.keys()]
    found = agreement(usable, params)
    shares = {"verdicts": float(len(held)), "verdicts_usable": len(usable) / len(held)}
    agreed = {"verdict_tau": found.tau, "verdict_tiers": found.tiers}
    return shares | {name: value for name, value in agreed.items() if not math.isnan(value)}


def read_answer(text: str, calls: CallFormat) -> Verdict | None:
    """The verdict that the last call of an answer hands in, by the names that its session gave the candidates; the call may also
    be written as JSON, `{"tool": NAME, "arguments": {...}}`. None where it hands in none."""
    try:
        form = read_form(json.dumps(_arguments(after_thinking(text), calls)), VerdictForm)
    except (CallError, VerdictError):
        return None
    return Verdict("answer", {grade.candidate: grade.grade for grade in form.grades})


def _arguments(text: str, calls: CallFormat) -> Any:
    words, found = parse_calls(text, calls)
    if found:
        return {name: _json(value) for name, value in found[-1].arguments}
    match _json(words[words.find("{") : words.rfind("}") + 1]):
        case {"tool": str(), "arguments": dict(arguments)}:
            return arguments
    raise CallError("no call")


def _json(value: Any) -> Any:
    """What a text says, where it says something in JSON: some formats write every value as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
