"""Calls that a model writes as text, where its server does not read them for us."""

import json
from collections.abc import Sequence
from typing import Any

from gagar_mcore.agent.calls import CallError, CallFormat, JsonCalls, ReadCall, XmlCalls, after_thinking, parse_calls
from gagar_mcore.engine.chat import Call


def written_calls(text: str, formats: Sequence[CallFormat] = (XmlCalls(), JsonCalls())) -> list[Call]:
    """Those between `<tool_call>` and `</tool_call>`, as one of the formats has them, no ids; none where one is malformed."""
    for calls in formats:
        try:
            _, found = parse_calls(after_thinking(text), calls)
        except CallError:
            continue
        return [Call("", call.name, _arguments(call)) for call in found]
    return []


def bare_call(text: str) -> list[Call]:
    """The one call that an answer is, `{"tool": NAME, "arguments": {...}}`, perhaps in a block of code."""
    start, end = text.find("{"), text.rfind("}")
    try:
        said = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return []
    match said:
        case {"tool": str(name), "arguments": dict(arguments)} if len(said) == 2:
            return [Call("", name, json.dumps(arguments))]
    return []


def _arguments(call: ReadCall) -> str:
    """As JSON. A format whose values are all text has lists and objects written as JSON; a parameter given twice is kept twice,
    for its reader to refuse."""
    pairs = [f"{json.dumps(name)}: {json.dumps(_value(value))}" for name, value in call.arguments]
    return "{" + ", ".join(pairs) + "}"


def _value(value: Any) -> Any:
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
