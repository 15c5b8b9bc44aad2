"""A file's data as a record, and back: what each of the three formats calls its parts, and where it has them."""

from typing import Any, get_args

from gagar_mcore.integrations.imports.data import SourceError, describe, object_at, present, take_list, take_text
from gagar_mcore.integrations.imports.messages import OPENAI, SWE_AGENT, read_messages, write_message
from gagar_mcore.integrations.imports.steps import read_step, write_step
from gagar_mcore.records.imported import ImportedTrajectory, Source, SourceFormat

FORMATS: tuple[SourceFormat, ...] = get_args(SourceFormat)
MESSAGES = {"swe-agent": "history", "mini-swe-agent": "messages", "openai": "messages"}
DIALECTS = {"swe-agent": SWE_AGENT, "mini-swe-agent": OPENAI, "openai": OPENAI}
TASK_FIELDS = ("instance_id", "task_id")


def import_data(data: Any, kind: SourceFormat, source: Source, id: str, task_id: str) -> ImportedTrajectory:
    """The record of the JSON data of one file, or one line. `task_id` is that of data that names none.
    Raises SourceError naming the field."""
    key = MESSAGES[kind]
    if isinstance(data, list) and kind != "swe-agent":
        messages = read_messages(data, key, DIALECTS[kind])
        return ImportedTrajectory(id, kind, source, task_id, messages, [], None, None, None)
    if not isinstance(data, dict):
        raise SourceError(f"must be an object, got {describe(data)}")
    rest = dict(data)
    steps = take_list(rest, "trajectory", "trajectory") if kind == "swe-agent" else []
    messages = read_messages(take_list(rest, key, key), key, DIALECTS[kind])
    patch, exit_status = _take_outcome(rest, kind)
    named = next((rest[name] for name in TASK_FIELDS if isinstance(rest.get(name), str)), task_id)
    read = [read_step(step, f"trajectory[{index}]") for index, step in enumerate(steps)]
    return ImportedTrajectory(id, kind, source, named, messages, read, patch, exit_status, rest)


def export_data(record: ImportedTrajectory) -> Any:
    """The JSON data that the record was imported from."""
    messages: list[Any] = [write_message(message, DIALECTS[record.format]) for message in record.messages]
    if record.extra is None:
        return messages
    steps = {"trajectory": [write_step(step) for step in record.steps]} if record.format == "swe-agent" else {}
    return {**steps, MESSAGES[record.format]: messages, **record.extra, **_outcome(record, record.extra)}


def _take_outcome(data: dict[str, Any], kind: SourceFormat) -> tuple[str | None, str | None]:
    if kind == "openai":
        return take_text(data, "patch"), take_text(data, "exit_status")
    if "info" not in data:
        return None, None
    data["info"] = info = object_at(data["info"], "info")
    return take_text(info, "submission"), take_text(info, "exit_status")


def _outcome(record: ImportedTrajectory, extra: dict[str, Any]) -> dict[str, Any]:
    if record.format == "openai":
        return present(patch=record.patch, exit_status=record.exit_status)
    outcome = present(submission=record.patch, exit_status=record.exit_status)
    return {"info": extra["info"] | outcome} if "info" in extra else {}
