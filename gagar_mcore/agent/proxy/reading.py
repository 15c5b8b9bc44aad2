"""What a policy said, read for an agent: thoughts, words, calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gagar_mcore.agent.calls import THINK, CallError, CallFormat, ReadCall, Tool, parse_calls, split_thinking
from gagar_mcore.agent.proxy.conversation import Call, Said


def read_answer(text: str, calls: CallFormat, tools: Sequence[Tool]) -> tuple[Said, bool]:
    """The answer, and False where it holds a call that is none or that no tool fits: such a call stays among its words. Words
    behind a call are not shown. Without `tools` nothing is a call."""
    try:
        thinking, rest = split_thinking(text)
    except CallError:
        return Said("", text.lstrip().removeprefix(THINK).strip("\n")), False
    if not tools:
        return Said(rest, thinking), True
    known = {tool.name: tool for tool in tools}
    try:
        words, found = parse_calls(rest, calls)
        said = tuple(_call(call, known) for call in found)
    except ValueError:  # no call, or one whose arguments cannot be told to an agent
        return Said(rest, thinking), False
    return Said(words.rstrip("\n") if found else words, thinking, said), all(call.name in known for call in found)


def _call(call: ReadCall, tools: Mapping[str, Tool]) -> Call:
    schema = tools[call.name].schema if call.name in tools else {}
    properties = schema.get("properties", {})
    return Call.of(call.name, {name: _value(value, properties.get(name, {})) for name, value in call.arguments})


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Formats that write every value as text leave it to the tool's schema which are none."""
    if not isinstance(value, str) or schema.get("type", "string") == "string":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
