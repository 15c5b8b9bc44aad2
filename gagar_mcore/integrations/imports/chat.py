"""Trajectories as chat messages alone, in the form that chat templates and fine-tuning take."""

from typing import Any

from gagar_mcore.integrations.imports.data import SourceError, present
from gagar_mcore.integrations.imports.messages import write_call
from gagar_mcore.integrations.imports.responses import text_of
from gagar_mcore.records.imported import ImportedTrajectory, Message

TEXT_PARTS = ("text", "input_text", "output_text")
OF_A_MESSAGE = ("name", "function_call", "refusal")


def chat_data(record: ImportedTrajectory) -> dict[str, Any]:
    """`{"id", "task_id", "messages"}`, and `tools` where the source has them. Parts that are all text are one text. Left out are
    an agent's notes beside the messages, and its closing message to itself. Raises SourceError for a message that a chat cannot
    hold."""
    said = [(index, message) for index, message in enumerate(record.messages) if message.role != "exit"]
    messages = [_message(message, f"messages[{index}]", record.format != "swe-agent") for index, message in said]
    tools = (record.extra or {}).get("tools")
    return {"id": record.id, "task_id": record.task_id, "messages": messages, **present(tools=tools)}


def _message(message: Message, where: str, thinks_apart: bool) -> dict[str, Any]:
    if len(message.answers) > 1:
        raise SourceError(f"{where}: answers {len(message.answers)} tool calls; a chat message answers one")
    fields = {key: message.extra[key] for key in OF_A_MESSAGE if message.shape == "chat" and key in message.extra}
    if thinks_apart and message.thought is not None:  # SWE-agent's thought is part of the content
        fields["reasoning_content"] = message.thought
    if message.tool_calls:
        fields["tool_calls"] = [{"type": "function", **write_call(call)} for call in message.tool_calls]
    answered = present(tool_call_id=next(iter(message.answers), None))
    return {"role": message.role, "content": _content(message.content), **fields, **answered}


def _content(content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
    if not isinstance(content, list) or any(part.get("type") not in TEXT_PARTS for part in content):
        return content
    return "".join(text_of(content))
