"""Conversations to learn from: OpenAI's chat messages in JSON lines, with the tools that they may call."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.agent.calls import Answer, Tool, ToolCall
from gagar_mcore.agent.context import Context
from gagar_mcore.config.load import RecipeError
from gagar_mcore.integrations.jsonl_schema import explain


class DataError(RecipeError):
    """A conversation that cannot be learnt from; the message names file, line and field."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(_Part):
    type: Literal["text"]
    text: str


Content = str | list[TextPart] | None
_KIND = re.compile(r"(?<=\])\.(system|developer|user|tool|assistant)(?=[.:])")  # pydantic names the kind among the fields
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class Function(_Part):
    """`arguments`: an object, or its JSON as OpenAI's API writes it."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class FunctionCall(_Part):
    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class ContextMessage(_Part):
    role: Literal["system", "developer", "user", "tool"]
    content: Content
    name: str | None = None
    tool_call_id: str | None = None


class AssistantMessage(_Part):
    """`weight` of its tokens in the loss; 0 makes it context."""

    role: Literal["assistant"]
    content: Content = None
    reasoning_content: str | None = None
    tool_calls: list[FunctionCall] | None = None
    name: str | None = None
    weight: Weight = 1.0


class Declared(_Part):
    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None


class DeclaredTool(_Part):
    type: Literal["function"] = "function"
    function: Declared


class Conversation(_Part):
    """One line. `id`, `task_id` and `metadata` are the reader's own affair."""

    messages: list[Annotated[ContextMessage | AssistantMessage, Field(discriminator="role")]]
    tools: list[DeclaredTool] | None = None
    parallel_tool_calls: bool | None = None
    id: str | None = None
    task_id: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model reads, and what it then says; `weight` of its tokens in the loss."""

    context: list[Context]
    answer: Answer
    weight: float


def read_conversations(paths: Sequence[Path]) -> Iterator[tuple[str, Conversation]]:
    """Every conversation of the files, with its place (`FILE: line N`); blank lines count but are none. Raises DataError."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield (where := f"{path}: line {number}"), parse_conversation(line, where)
        except OSError as error:
            raise DataError(f"{path}: {(error.strerror or str(error)).lower()}; name a file of JSON lines") from error


def parse_conversation(line: bytes, where: str) -> Conversation:
    """Raises DataError, which begins with `where`."""
    try:
        return Conversation.model_validate(json.loads(line))
    except ValidationError as error:
        raise DataError(f"{where}: {_KIND.sub('', explain(error), 1)}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error


def tools_of(conversation: Conversation) -> tuple[Tool, ...]:
    declared = (tool.function for tool in conversation.tools or ())
    return tuple(Tool(tool.name, tool.description, declared=tool.parameters) for tool in declared)


def turns_of(conversation: Conversation, where: str) -> list[Turn]:
    """Its answers, each with what came between the last one and it; what follows them teaches nothing and is left out. Raises
    DataError."""
    turns: list[Turn] = []
    context: list[Context] = []
    for index, message in enumerate(conversation.messages):
        field = f"{where}: messages[{index}]"
        if isinstance(message, ContextMessage):
            context.append(Context("system" if message.role == "developer" else message.role, _text(message.content)))
            continue
        if not context:
            raise DataError(f"{field}.role: an answer to nothing; put a message of another role before it")
        turns.append(Turn(context, _answer(message, field), message.weight))
        context = []
    if not any(turn.weight for turn in turns):
        raise DataError(f"{where}: messages: none of an assistant with a weight above 0, which leaves nothing to learn")
    return turns


def _answer(message: AssistantMessage, where: str) -> Answer:
    calls = tuple(
        ToolCall(call.function.name, _arguments(call.function, f"{where}.tool_calls[{index}]"))
        for index, call in enumerate(message.tool_calls or ())
    )
    return Answer(_text(message.content), message.reasoning_content or "", calls)


def _arguments(function: Function, where: str) -> dict[str, Any]:
    if isinstance(function.arguments, dict):
        return function.arguments
    try:
        arguments = json.loads(function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise DataError(f"{where}.function.arguments: must be a JSON object, or a text that is one")
    return arguments


def _text(content: Content) -> str:
    return content or "" if not isinstance(content, list) else "".join(part.text for part in content)
