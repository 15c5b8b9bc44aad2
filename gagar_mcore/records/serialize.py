"""Records to plain JSON data and back, driven by the dataclasses' own types."""

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_plain(record: Any) -> dict[str, Any]:
    plain: dict[str, Any] = _adapter(type(record)).dump_python(record)  # type: ignore[arg-type]
    return plain


def from_plain(kind: type[Record], data: Any) -> Record:
    """Rebuild a record from JSON data; raises pydantic.ValidationError that names the field."""
    record: Record = _adapter(kind).validate_python(data)  # type: ignore[arg-type]
    return record
