"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`, as its reference describes them (docs.anthropic.com/en/api)."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field

from gagar_mcore.agent.context import Context
from gagar_mcore.agent.proxy.api import MODEL, Body, Request, TextPart, parsed, text_of, told_call, tool, unsupported
from gagar_mcore.agent.proxy.conversation import Answered, Asked, Message, Refused, Said

STOP = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens"}
KINDS = {410: "invalid_request_error", 413: "request_too_large"}
SIGNATURE = "unsigned"


class ToolResult(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | tuple[TextPart, ...] | None = None


class ToolUse(Body):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class Thinking(Body):
    type: Literal["thinking"]
    thinking: str


class UserMessage(Body):
    role: Literal["user"]
    content: str | tuple[Annotated[TextPart | ToolResult, Field(discriminator="type")], ...]


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: str | tuple[Annotated[TextPart | ToolUse | Thinking, Field(discriminator="type")], ...]


class Declared(Body):
    type: Literal["custom"] | None = None
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class CountRequest(Body):
    """A conversation, for `/v1/messages/count_tokens`."""

    model: str
    messages: tuple[Annotated[UserMessage | AssistantMessage, Field(discriminator="role")], ...]
    system: str | tuple[TextPart, ...] | None = None
    tools: tuple[Declared, ...] | None = None


class MessagesRequest(CountRequest):
    """The parameters that the proxy looks at. Those of sampling are the recipe's; `max_tokens` can only lower it."""

    max_tokens: Annotated[int, Field(ge=1)]
    tool_choice: dict[str, Any] | None = None
    stop_sequences: tuple[str, ...] | None = None
    stream: bool | None = None


class Counting:
    """Reads what tokens are to be counted of."""

    def read(self, body: bytes, before: tuple[Message, ...] = ()) -> Request:
        request = parsed(CountRequest, body)
        told = (*before, *_told(request))
        return Request(_asked(request, told), False, told)


class Anthropic:
    def read(self, body: bytes, before: tuple[Message, ...] = ()) -> Request:
        request = parsed(MessagesRequest, body)
        unsupported(
            stop_sequences=bool(request.stop_sequences),
            tool_choice=(request.tool_choice or {}).get("type", "auto") != "auto",
        )
        told = (*before, *_told(request))
        return Request(_asked(request, told, request.max_tokens), bool(request.stream), told)

    def write(self, answered: Answered) -> dict[str, Any]:
        said = answered.said
        content: list[dict[str, Any]] = []
        if said.thinking:
            content.append({"type": "thinking", "thinking": said.thinking, "signature": SIGNATURE})
        if said.text or not said.calls:
            content.append({"type": "text", "text": said.text})
        for i, call in enumerate(said.calls):
            use = {"type": "tool_use", "id": f"toolu_{answered.index}_{i}", "name": call.name}
            content.append(use | {"input": json.loads(call.arguments)})
        return _opening(answered) | {
            "content": content,
            "stop_reason": STOP[answered.finish],
            "usage": {"input_tokens": answered.input_tokens, "output_tokens": answered.output_tokens},
        }

    def events(self, answered: Answered) -> list[tuple[str | None, Any]]:
        whole = self.write(answered)
        started = _opening(answered) | {"usage": {"input_tokens": answered.input_tokens, "output_tokens": 0}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": started}]
        for index, block in enumerate(whole["content"]):
            opened, *deltas = _pieces(block)
            events.append({"type": "content_block_start", "index": index, "content_block": opened})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": answered.output_tokens}})
        events.append({"type": "message_stop"})
        return [(str(event["type"]), event) for event in events]

    def error(self, refused: Refused) -> dict[str, Any]:
        kind = KINDS.get(refused.status, refused.kind)
        return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def _told(request: CountRequest) -> tuple[Message, ...]:
    return tuple(said for message in request.messages for said in _messages(message))


def _asked(request: CountRequest, told: tuple[Message, ...], max_tokens: int | None = None) -> Asked:
    tools = tuple(tool(t.name, t.description, t.input_schema) for t in request.tools or ())
    system = [Context("system", text_of(request.system))] if request.system else []
    return Asked((*system, *told), tools, max_tokens)


def _messages(message: UserMessage | AssistantMessage) -> Iterator[Message]:
    if isinstance(message, AssistantMessage):
        yield _said(message)
    elif isinstance(message.content, str):
        yield Context("user", message.content)
    else:
        for of_tools, blocks in groupby(message.content, key=lambda block: isinstance(block, ToolResult)):
            if of_tools:
                yield from (Context("tool", text_of(block.content)) for block in blocks if isinstance(block, ToolResult))
            else:
                yield Context("user", text_of(tuple(block for block in blocks if isinstance(block, TextPart))))


def _said(message: AssistantMessage) -> Said:
    if isinstance(message.content, str):
        return Said(message.content)
    blocks = message.content
    text = "".join(block.text for block in blocks if isinstance(block, TextPart))
    thinking = "".join(block.thinking for block in blocks if isinstance(block, Thinking))
    return Said(text, thinking, tuple(told_call(block.name, block.input) for block in blocks if isinstance(block, ToolUse)))


def _opening(answered: Answered) -> dict[str, Any]:
    return {
        "id": f"msg_{answered.index}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _pieces(block: dict[str, Any]) -> list[dict[str, Any]]:
    """How a block is opened, and what fills it."""
    match block["type"]:
        case "text":
            return [{"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}]
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": SIGNATURE},
            ]
            return [{"type": "thinking", "thinking": "", "signature": ""}, *deltas]
        case _:
            return [block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
