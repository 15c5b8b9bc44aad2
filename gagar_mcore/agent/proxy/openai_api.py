"""OpenAI's `/v1/chat/completions`, as its reference describes it (platform.openai.com/docs/api-reference/chat)."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from gagar_mcore.agent.context import Context
from gagar_mcore.agent.proxy.api import DONE, MODEL, Body, Request, TextPart, parsed, text_of, told_call, tool, unsupported
from gagar_mcore.agent.proxy.conversation import Answered, Asked, Message, Refused, Said, invalid

Content = str | tuple[TextPart, ...] | None
FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length"}


class Function(Body):
    name: str
    arguments: str = "{}"


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: Function


class ContextMessage(Body):
    role: Literal["system", "developer", "user", "tool"]
    content: Content


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: Content = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class Declared(Body):
    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class DeclaredTool(Body):
    type: Literal["function"]
    function: Declared


class ChatRequest(Body):
    """The parameters that the proxy looks at. Those of sampling are the recipe's; `max_tokens` can only lower it."""

    model: str
    messages: tuple[Annotated[ContextMessage | AssistantMessage, Field(discriminator="role")], ...]
    tools: tuple[DeclaredTool, ...] | None = None
    tool_choice: Any = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    n: int | None = None
    stop: Any = None
    logprobs: bool | None = None
    response_format: dict[str, Any] | None = None
    functions: Any = None


class OpenAi:
    def read(self, body: bytes, before: tuple[Message, ...] = ()) -> Request:
        request = parsed(ChatRequest, body)
        unsupported(
            n=request.n not in (None, 1),
            stop=bool(request.stop),
            logprobs=bool(request.logprobs),
            response_format=(request.response_format or {}).get("type", "text") != "text",
            functions=bool(request.functions),
            tool_choice=request.tool_choice not in (None, "auto"),
        )
        tools = tuple(tool(t.function.name, t.function.description, t.function.parameters) for t in request.tools or ())
        messages = (*before, *map(_message, request.messages))
        asked = Asked(messages, tools, request.max_completion_tokens or request.max_tokens)
        return Request(asked, bool(request.stream), messages)

    def write(self, answered: Answered) -> dict[str, Any]:
        said = answered.said
        message: dict[str, Any] = {"role": "assistant", "content": said.text or (None if said.calls else "")}
        if said.thinking:
            message["reasoning_content"] = said.thinking
        if said.calls:
            message["tool_calls"] = _calls(answered)
        choice = {"index": 0, "message": message, "finish_reason": FINISH[answered.finish], "logprobs": None}
        return _envelope(answered, "chat.completion", [choice]) | {"usage": _usage(answered)}

    def events(self, answered: Answered) -> list[tuple[str | None, Any]]:
        message = self.write(answered)["choices"][0]["message"]
        if "tool_calls" in message:
            message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        deltas = [({"role": "assistant", "content": ""}, None), ({k: v for k, v in message.items() if k != "role"}, None)]
        chunks = [_chunk(answered, delta, finish) for delta, finish in (*deltas, ({}, FINISH[answered.finish]))]
        chunks[-1]["usage"] = _usage(answered)
        return [*((None, chunk) for chunk in chunks), (None, DONE)]

    def error(self, refused: Refused) -> dict[str, Any]:
        return {"error": {"message": str(refused), "type": refused.kind, "param": None, "code": refused.code}}


def models() -> dict[str, Any]:
    """`/v1/models`, in a form that clients of either API read."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "gagar"}
    also = {"type": "model", "display_name": MODEL, "created_at": "1970-01-01T00:00:00Z"}
    return {"object": "list", "data": [model | also], "has_more": False, "first_id": MODEL, "last_id": MODEL}


def _message(message: ContextMessage | AssistantMessage) -> Message:
    if isinstance(message, ContextMessage):
        return Context("system" if message.role == "developer" else message.role, text_of(message.content))
    calls = tuple(told_call(call.function.name, _arguments(call.function)) for call in message.tool_calls or ())
    return Said(text_of(message.content), message.reasoning_content or "", calls)


def _arguments(function: Function) -> dict[str, Any]:
    try:
        arguments = json.loads(function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid(f"messages: the arguments of a call of {function.name} are no JSON object")
    return arguments


def _calls(answered: Answered) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{answered.index}_{i}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for i, call in enumerate(answered.said.calls)
    ]


def _envelope(answered: Answered, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answered.index}", "object": kind, "created": 0, "model": MODEL, "choices": choices}


def _chunk(answered: Answered, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return _envelope(answered, "chat.completion.chunk", [choice])


def _usage(answered: Answered) -> dict[str, int]:
    read, written = answered.input_tokens, answered.output_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
