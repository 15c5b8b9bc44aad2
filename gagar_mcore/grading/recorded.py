"""Groups that other programs recorded, a line of JSON each, as `docs/grading.md` describes them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gagar_mcore.records.imported import ImportedTrajectory, Message
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import RecordError
from gagar_mcore.records.types import TestStatus, Trajectory, Turn, Verification
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task

GROUPS_FILE = "groups.jsonl"


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A group as it can be graded again."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Turn(_Row):
    action: str
    observation: str = ""
    tool: str = ""
    ok: bool = True


class _Member(_Row):
    """`imported`: a record of `gagar import`, in the place of patch and turns."""

    id: str
    reward: Annotated[float, Field(ge=0, le=1)]
    patch: str = ""
    turns: list[_Turn] = Field(default_factory=list)
    tests: dict[str, TestStatus] = Field(default_factory=dict)
    output: str = ""
    imported: dict[str, Any] | None = None


class _Group(_Row):
    """`task`: a task's directory; or else `instruction` and `repository`, a directory too. Both from the file's folder."""

    group: str
    task: str | None = None
    instruction: str | None = None
    repository: str | None = None
    trajectories: Annotated[list[_Member], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_a_task(self) -> "_Group":
        if (self.task is None) == (self.instruction is None):
            raise ValueError("give either task or instruction")
        return self


def read_groups(path: Path) -> Iterator[RecordedGroup]:
    """The groups of a file. Raises RecordError naming line and field, and TaskError."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _read(path, number, line)


def _read(path: Path, number: int, line: str) -> RecordedGroup:
    try:
        row = _Group.model_validate(json.loads(line))
        members = tuple(_trajectory(row.group, index, member) for index, member in enumerate(row.trajectories))
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{path}: line {number}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: line {number}: not valid JSON: {error}") from error
    return RecordedGroup(row.group, _task(path.parent, row), members)


def _task(folder: Path, row: _Group) -> Task:
    if row.task is not None:
        return load_task(folder / row.task)
    repository = folder / row.repository if row.repository else folder / "none"
    if row.repository and not repository.is_dir():
        raise RecordError(f"{repository}: no such folder, though a group names it as its repository")
    return Task(row.group, folder, row.instruction or "", repository, folder / "none", (), ())


def _trajectory(group: str, index: int, member: _Member) -> Trajectory:
    imported = from_plain(ImportedTrajectory, member.imported) if member.imported is not None else None
    if imported is not None:
        patch, end, turns = imported.patch or "", imported.exit_status or "", _imported_turns(imported)
    else:
        patch, end = member.patch, "submitted"
        turns = [_turn(i, t.action, t.observation, t.tool, t.ok) for i, t in enumerate(member.turns)]
    return Trajectory(
        id=member.id,
        group_id=group,
        task_id=group,
        member=index,
        token_ids=[],
        logprobs=[],
        loss_mask=[],
        weight_spans=[],
        turns=turns,
        patch=patch,
        end_reason="finished" if "submitted" in end.lower() else "max_turns",
        reward=member.reward,
        valid=True,
        verification=Verification(member.reward, member.tests, member.output, 0.0),
    )


def _imported_turns(imported: ImportedTrajectory) -> list[Turn]:
    """One a step of the agent, or one an answer of its model with what followed."""
    if imported.steps:
        return [_turn(i, step.response or step.action, step.observation) for i, step in enumerate(imported.steps)]
    turns: list[tuple[str, str]] = []
    for message in imported.messages:
        if message.role == "assistant":
            turns.append((_said(message), ""))
        elif turns:
            action, seen = turns[-1]
            turns[-1] = (action, f"{seen}\n{_text(message)}".lstrip("\n"))
    return [_turn(i, action, seen) for i, (action, seen) in enumerate(turns)]


def _said(message: Message) -> str:
    calls = [f"{call.name} {_as_text(call.arguments)}" for call in message.tool_calls]
    return "\n".join(filter(None, [message.thought or "", _text(message), *calls]))


def _text(message: Message) -> str:
    if isinstance(message.content, list):
        return "\n".join(str(part.get("text", "")) for part in message.content)
    return message.content or ""


def _as_text(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _turn(index: int, action: str, observation: str, tool: str = "", ok: bool = True) -> Turn:
    return Turn(index, action, tool or "action", observation, ok, "stop", 0, 0.0)
