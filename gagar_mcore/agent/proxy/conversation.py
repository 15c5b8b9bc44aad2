"""A conversation as an agent tells it, whichever API it speaks."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gagar_mcore.agent.calls import Tool, ToolCall
from gagar_mcore.agent.context import Context

_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)
_DEEPEST = 100
_MARKS = 16  # characters that the marks of a message or call count for


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` as canonical JSON, so that equal calls are equal however an agent writes them."""

    name: str
    arguments: str

    @classmethod
    def of(cls, name: str, arguments: Any) -> "Call":
        """Raises ValueError where they cannot be said, see `canonical`."""
        name.encode()
        return cls(name, canonical(arguments))

    @property
    def said(self) -> ToolCall:
        return ToolCall(self.name, json.loads(self.arguments))


@dataclass(frozen=True, slots=True)
class Said:
    """What the policy said, or what an agent claims that it has. Agents drop thoughts and trim texts when they tell it again: two
    are the same where the rest of them is, see `identity`."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def identity(self) -> tuple[str, tuple[Call, ...]]:
        return self.text.strip(), self.calls


Message = Context | Said
Finish = Literal["stop", "calls", "length"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of an agent: the whole conversation so far, and the most tokens that it wants (None: as many as there may be)."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to the call `index` of the session, counted from 0. Tokens are those of the context read and of the answer."""

    index: int
    said: Said
    finish: Finish
    input_tokens: int
    output_tokens: int


class Refused(Exception):
    """A call that is not answered, with the HTTP status and the API's word for it."""

    def __init__(self, status: int, kind: str, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code


def invalid(message: str) -> Refused:
    return Refused(400, "invalid_request_error", message)


def canonical(value: Any) -> str:
    """In JSON, equal values alike. Raises ValueError for what not every program can read: lone surrogates, numbers without a
    value or with thousands of digits, very deep nesting."""
    layer, depth = [value], 0
    while layer:
        if (depth := depth + 1) > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        layer = [inner for outer in layer if isinstance(outer, dict | list) for inner in _inner(outer)]
    text = _CANONICAL.encode(value)
    text.encode()
    return text


def _inner(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def same(told: Sequence[Message], recorded: Sequence[Message]) -> bool:
    """Whether an agent tells these messages as they are recorded."""
    return len(told) == len(recorded) and all(map(_same, told, recorded))


def characters(message: Message) -> int:
    """That its rendering may have to encode, marks included."""
    if isinstance(message, Context):
        return _MARKS + len(message.text)
    said = sum(_MARKS + len(call.name) + len(call.arguments) for call in message.calls)
    return _MARKS + len(message.text) + len(message.thinking) + said


def _same(told: Message, recorded: Message) -> bool:
    if isinstance(told, Said) and isinstance(recorded, Said):
        return told.identity == recorded.identity and told.thinking in ("", recorded.thinking)
    return told == recorded
