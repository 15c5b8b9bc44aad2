"""What the two APIs have in common."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gagar_mcore.agent.calls import Tool
from gagar_mcore.agent.proxy.conversation import Answered, Asked, Call, Message, Refused, canonical, invalid

MODEL = "policy"  # the name under which the proxy offers it; agents may ask for any other
DONE = "[DONE]"  # what ends a stream of OpenAI's; it is no JSON
SHOWN_ERRORS = 3


class Body(BaseModel):
    """A part of a request. What an API knows and this proxy does not is left alone: it changes no token."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TextPart(Body):
    type: Literal["text"]
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """`told`: what its list of messages says, of which some APIs keep the system's apart."""

    asked: Asked
    stream: bool
    told: tuple[Message, ...]


class Reader(Protocol):
    """Of bodies in JSON."""

    def read(self, body: bytes, before: tuple[Message, ...] = ()) -> Request:
        """before: what its list of messages says before the first one that is in `body`. Raises Refused where the request is
        malformed, or wants what the policy cannot do."""


class Api(Reader, Protocol):
    """One way to ask a model."""

    def write(self, answered: Answered) -> dict[str, Any]: ...

    def events(self, answered: Answered) -> list[tuple[str | None, Any]]:
        """The same answer as a stream of server-sent events: name and data."""

    def error(self, refused: Refused) -> dict[str, Any]: ...


Parsed = TypeVar("Parsed", bound=Body)


def parsed(kind: type[Parsed], body: bytes) -> Parsed:
    """Raises Refused, which names the fields."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise invalid("; ".join(found[:SHOWN_ERRORS])) from error


def text_of(content: str | tuple[TextPart, ...] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def tool(name: str, description: str, schema: dict[str, Any]) -> Tool:
    """Raises Refused where the schema is not that of an object with named parameters."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not (isinstance(properties, dict) and all(isinstance(what, dict) for what in properties.values())):
        raise invalid(f"tools: {name}: properties must be an object of JSON schemas")
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise invalid(f"tools: {name}: required must be a list of names")
    try:
        canonical(schema)
    except ValueError as error:
        raise invalid(f"tools: {name}: {error}") from error
    return Tool(name, description, declared=schema)


def told_call(name: str, arguments: Any) -> Call:
    """Raises Refused where nobody could write the call again."""
    try:
        return Call.of(name, arguments)
    except ValueError as error:
        raise invalid(f"messages: the arguments of a call of {name}: {error}") from error


def unsupported(**wanted: bool) -> None:
    """Raises Refused for what an agent relies on and would not get."""
    if names := [name for name, is_wanted in wanted.items() if is_wanted]:
        raise invalid(f"{', '.join(names)}: not supported here; leave it out")
