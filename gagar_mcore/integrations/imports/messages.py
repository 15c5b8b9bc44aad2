"""Chat messages: role, content, thought, tool calls and their answers, with everything else kept beside them."""

from dataclasses import dataclass
from typing import Any

from gagar_mcore.integrations.imports.data import SourceError, describe, object_at, present, require_text, take_list, take_text
from gagar_mcore.integrations.imports.responses import is_item, read_item
from gagar_mcore.records.imported import Message, ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "exit")
PARTS = {"custom": ("custom", "input")}  # by a call's type: where its name is, and what its arguments are called


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a format calls the fields that formats call differently."""

    thought: str
    answers: str  # `tool_call_ids` is a list, `tool_call_id` a text


OPENAI = Dialect("reasoning_content", "tool_call_id")
SWE_AGENT = Dialect("thought", "tool_call_ids")


def read_messages(data: list[Any], where: str, dialect: Dialect) -> list[Message]:
    """Raises SourceError naming the message and its field."""
    return [read_message(item, f"{where}[{index}]", dialect) for index, item in enumerate(data)]


def read_message(data: Any, where: str, dialect: Dialect) -> Message:
    rest = object_at(data, where)
    if is_item(rest):
        return read_item(rest, where)
    role = require_text(rest, "role", f"{where}.role")
    if role not in ROLES:
        raise SourceError(f"{where}.role: must be one of {', '.join(ROLES)}, got {describe(role)}")
    content = _take_content(rest, f"{where}.content", optional=role == "assistant")
    thought, answers = take_text(rest, dialect.thought), _take_answers(rest, dialect.answers)
    return Message(role, content, thought, _take_calls(rest, f"{where}.tool_calls"), answers, rest)


def write_message(message: Message, dialect: Dialect) -> dict[str, Any]:
    """The message as its source has it."""
    if message.shape == "responses":
        return dict(message.extra)
    data = {"role": message.role, **present(content=message.content), **message.extra}
    if message.thought is not None:
        data[dialect.thought] = message.thought
    if message.tool_calls:
        data["tool_calls"] = [write_call(call) for call in message.tool_calls]
    if message.answers:
        data[dialect.answers] = message.answers if dialect.answers == "tool_call_ids" else message.answers[0]
    return data


def write_call(call: ToolCall) -> dict[str, Any]:
    name_at, arguments_at = _places(call.extra)
    body = {"name": call.name, arguments_at: call.arguments, **call.extra.get(name_at, {})}
    return {**present(id=call.id), **call.extra, name_at: body}


def _take_content(data: dict[str, Any], where: str, optional: bool) -> str | list[dict[str, Any]] | None:
    if "content" not in data and not optional:
        raise SourceError(f"{where}: required and missing")
    content = data.get("content")
    if content is None:
        return None
    if isinstance(content, list):
        return [object_at(part, f"{where}[{index}]") for index, part in enumerate(data.pop("content"))]
    return require_text(data, "content", where)


def _take_answers(data: dict[str, Any], key: str) -> list[str]:
    found = data.get(key)
    if key == "tool_call_id":
        return [data.pop(key)] if isinstance(found, str) else []
    named = isinstance(found, list) and all(isinstance(id, str) for id in found)
    return data.pop(key) if named and found else []


def _take_calls(data: dict[str, Any], where: str) -> list[ToolCall]:
    if not data.get("tool_calls"):
        return []
    return [_read_call(call, f"{where}[{index}]") for index, call in enumerate(take_list(data, "tool_calls", where))]


def _read_call(data: Any, where: str) -> ToolCall:
    rest = object_at(data, where)
    name_at, arguments_at = _places(rest)
    body = object_at(rest.pop(name_at, None), f"{where}.{name_at}")
    name = require_text(body, "name", f"{where}.{name_at}.name")
    arguments = body.pop(arguments_at, None)
    if not isinstance(arguments, str | dict):
        raise SourceError(f"{where}.{name_at}.{arguments_at}: must be text or an object, got {describe(arguments)}")
    return ToolCall(name, arguments, take_text(rest, "id"), {**rest, **({name_at: body} if body else {})})


def _places(call: dict[str, Any]) -> tuple[str, str]:
    kind = call.get("type")
    return PARTS.get(kind, ("function", "arguments")) if isinstance(kind, str) else ("function", "arguments")
