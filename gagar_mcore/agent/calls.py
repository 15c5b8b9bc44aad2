"""Tool calls: what a policy may call, how a model family writes a call, and how a text is read back.

A call stands between `<tool_call>` and `</tool_call>`, after whatever was thought and said; what stands between is the family's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"

_NAME = re.compile(r"[\w.-]{1,128}")
_FUNCTION = re.compile(rf"\s*<function=({_NAME.pattern})>\s*")
_PARAMETER = re.compile(rf"<parameter=({_NAME.pattern})>")
_FUNCTION_END = re.compile(r"</function>")
_PARAMETER_END = "</parameter>"
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters`: what each one is, by name. All are texts, and all are required. `declared`: the JSON schema of an object that
    an outside agent gives in their place."""

    name: str
    description: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, Any] | None = None

    @property
    def schema(self) -> Mapping[str, Any]:
        if self.declared is not None:
            return self.declared
        properties = {name: {"type": "string", "description": what} for name, what in self.parameters.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments`: values as JSON has them; those of our own tools are texts."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy says in one turn: thoughts, words, calls, in this order."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallError(ValueError):
    """A text that is no valid call, or a call that its format cannot say; the message is shown to the policy."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call as it was written: parameters in their order, which may repeat; `end`: the index behind it in its text."""

    name: str
    arguments: list[tuple[str, Any]]
    end: int


class CallFormat(Protocol):
    """What a model family writes between the delimiters of a call."""

    def write(self, call: ToolCall) -> str:
        """Raises CallError where the format cannot say this call so that `read` gives it back."""

    def read(self, text: str) -> ReadCall:
        """The call that `text` begins with. Raises CallError."""


class XmlCalls:
    """MiMo: `<function=NAME><parameter=NAME>VALUE</parameter></function>`, a value exactly as it stands, line breaks included."""

    def write(self, call: ToolCall) -> str:
        for name in (call.name, *call.arguments):
            if _NAME.fullmatch(name) is None:
                raise CallError(f"{name!r} is no name of a tool or parameter")
        values = {name: _as_text(value) for name, value in call.arguments.items()}
        for name, value in values.items():
            if _PARAMETER_END in value:
                raise CallError(f"{name}: a value cannot hold {_PARAMETER_END}")
        body = "".join(f"<parameter={name}>{value}{_PARAMETER_END}\n" for name, value in values.items())
        return f"\n<function={call.name}>\n{body}</function>\n"

    def read(self, text: str) -> ReadCall:
        function = _FUNCTION.match(text)
        if function is None:
            raise _malformed_xml()
        at, arguments = function.end(), []
        while parameter := _PARAMETER.match(text, at):
            end = text.find(_PARAMETER_END, parameter.end())
            if end < 0:
                raise _malformed_xml()
            arguments.append((parameter[1], text[parameter.end() : end]))
            at = _after_space(text, end + len(_PARAMETER_END))
        if _FUNCTION_END.match(text, at) is None:
            raise _malformed_xml()
        return ReadCall(function[1], arguments, at + len("</function>"))


class JsonCalls:
    """Qwen3: `{"name": NAME, "arguments": {NAME: VALUE}}`."""

    def write(self, call: ToolCall) -> str:
        said = {"name": call.name, "arguments": call.arguments}
        return f"\n{json.dumps(said, ensure_ascii=False)}\n"

    def read(self, text: str) -> ReadCall:
        try:
            said, end = _JSON.raw_decode(text, _after_space(text, 0))
        except (ValueError, RecursionError) as error:
            raise CallError(f"the tool call is malformed: {error or 'nested too deeply'}") from error
        match said:
            case {"name": str(name), "arguments": dict(arguments)} if len(said) == 2:
                return ReadCall(name, list(arguments.items()), end)
        raise CallError('the tool call is malformed; write {"name": NAME, "arguments": {...}}')


def parse_call(text: str, calls: CallFormat, tools: Sequence[Tool]) -> ToolCall:
    """The one call in an answer, of a tool in `tools` with each of its parameters once. Raises CallError."""
    _, found = parse_calls(after_thinking(text), calls)
    if len(found) != 1:
        raise CallError(f"found {len(found)} tool calls; make exactly one")
    return _fitting(found[0], {tool.name: tool for tool in tools})


def parse_calls(text: str, calls: CallFormat) -> tuple[str, list[ReadCall]]:
    """The words of an answer before its first call, and its calls. Raises CallError where one is malformed."""
    words, opened, rest = text.partition(OPEN)
    found: list[ReadCall] = []
    while opened:
        call = calls.read(rest)
        behind = rest[_after_space(rest, call.end) :]
        if not behind.startswith(CLOSE):
            raise CallError(f"the tool call is malformed; end it with {CLOSE}")
        found.append(call)
        _, opened, rest = behind.partition(OPEN)
    return words, found


def _fitting(call: ReadCall, tools: Mapping[str, Tool]) -> ToolCall:
    if call.name not in tools:
        raise CallError(f"no tool {call.name!r}; there are {', '.join(tools)}")
    arguments, wanted = dict(call.arguments), tools[call.name].parameters
    if arguments.keys() != wanted.keys() or len(call.arguments) != len(arguments):
        raise CallError(f"{call.name} takes each of these parameters once: {', '.join(sorted(wanted)) or 'none'}")
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise CallError(f"{name}: must be a string")
    return ToolCall(call.name, arguments)


def after_thinking(text: str) -> str:
    """An answer without the thoughts that it begins with. Raises CallError where they do not end."""
    return split_thinking(text)[1]


def split_thinking(text: str) -> tuple[str, str]:
    """The thoughts that an answer begins with, and what follows them. Raises CallError where they do not end."""
    if not text.lstrip().startswith(THINK):
        return "", text
    thinking, closed, rest = text.lstrip().removeprefix(THINK).partition(THOUGHT)
    if not closed:
        raise CallError(f"the thinking does not end; write {THOUGHT} before the call")
    return thinking.strip("\n"), rest.lstrip("\n")


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _malformed_xml() -> CallError:
    return CallError(f"the tool call is malformed; write {OPEN}<function=NAME>...</function>{CLOSE}")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise CallError("a key occurs twice")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_unique)
