"""Items of OpenAI's Responses API among the messages: a whole response, or the output of a call.

Fields: https://platform.openai.com/docs/api-reference/responses/object
"""

from typing import Any

from gagar_mcore.integrations.imports.data import SourceError, describe, object_at, require_text, take_list
from gagar_mcore.records.imported import Message, ToolCall

OUTPUT = "function_call_output"


def is_item(data: dict[str, Any]) -> bool:
    return "role" not in data and (data.get("object") == "response" or data.get("type") == OUTPUT)


def read_item(data: dict[str, Any], where: str) -> Message:
    """The message that an item is; its `extra` is the item itself. Raises SourceError naming the field."""
    if data.get("type") == OUTPUT:
        answers = [require_text(dict(data), "call_id", f"{where}.call_id")]
        return Message("tool", _content(data.get("output"), f"{where}.output"), None, [], answers, data, "responses")
    items = [
        (object_at(item, f"{where}.output[{index}]"), f"{where}.output[{index}]")
        for index, item in enumerate(take_list(dict(data), "output", f"{where}.output"))
    ]
    said = [part for item, at in items if item.get("type") == "message" for part in _parts(item, "content", at)]
    thoughts = [part for item, at in items if item.get("type") == "reasoning" for part in _parts(item, "summary", at)]
    calls = [_call(item, at) for item, at in items if item.get("type") == "function_call"]
    thought = "\n".join(text_of(thoughts)) if thoughts else None
    return Message("assistant", "".join(text_of(said)) if said else None, thought, calls, [], data, "responses")


def text_of(parts: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _content(output: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(output, list):
        return [object_at(part, f"{where}[{index}]") for index, part in enumerate(output)]
    if not isinstance(output, str):
        raise SourceError(f"{where}: must be text or a list of parts, got {describe(output)}")
    return output


def _parts(item: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    if item.get(key) is None:
        return []
    return [object_at(part, f"{where}.{key}[{index}]") for index, part in enumerate(take_list(dict(item), key, f"{where}.{key}"))]


def _call(item: dict[str, Any], where: str) -> ToolCall:
    fields = {key: require_text(dict(item), key, f"{where}.{key}") for key in ("name", "arguments", "call_id")}
    return ToolCall(fields["name"], fields["arguments"], fields["call_id"])
