"""A trajectory that another agent recorded: its text as its file has it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import RecordError

SourceFormat = Literal["swe-agent", "mini-swe-agent", "openai"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trajectory was read: the file, its line in a file of lines, and the sha256 of the bytes that were read."""

    file: str
    line: int | None
    sha256: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` as the model wrote them: mostly JSON text, which need not be valid; an object where the file has one."""

    name: str
    arguments: str | dict[str, Any]
    id: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `content` is text or a list of parts, None where there is neither; `answers` are the ids of the tool calls
    that it answers; `extra` holds every other field, and those above whose value is null or empty.

    `shape` is "responses" for an item of OpenAI's Responses API: the fields are then read off `extra`, which is the whole item.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    thought: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    shape: Literal["chat", "responses"] = "chat"


@dataclass(frozen=True, slots=True)
class Step:
    """One step as the agent itself kept account of it, beside the messages. `seconds`: what its action took."""

    action: str
    observation: str
    thought: str | None = None
    response: str | None = None
    seconds: float | int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedTrajectory:
    """What a file of another agent tells. It has no token ids, log-probs or weight versions, so no policy gradient can be taken
    on it, and no reward, since no test was run here.

    `extra` holds every field of the file that has no place of its own, None where the file is a bare list of messages. `steps`
    is empty where the agent keeps messages only. `patch` and `exit_status` are None where the file has no such text.
    """

    id: str
    format: SourceFormat
    source: Source
    task_id: str
    messages: list[Message]
    steps: list[Step]
    patch: str | None
    exit_status: str | None
    extra: dict[str, Any] | None


def read_imported(path: Path) -> Iterator[ImportedTrajectory]:
    """The records of a file that `gagar import` wrote. Raises RecordError naming line and field of one that is damaged."""
    with open(path, encoding="ascii") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield from_plain(ImportedTrajectory, loads(line))
            except ValidationError as error:
                field_name = ".".join(str(part) for part in error.errors()[0]["loc"])
                raise RecordError(f"{path}: line {number}: {field_name}: {error.errors()[0]['msg'].lower()}") from error
            except ValueError as error:
                raise RecordError(f"{path}: line {number}: not valid JSON: {error}") from error
