"""JSON data of unknown origin: read strictly, so that nothing of it is dropped in silence."""

import json
import math
from typing import Any

MAX_DEPTH = 100


class SourceError(ValueError):
    """A file that is no trajectory, or not one of its format; the message names the field."""


def parse(text: bytes) -> Any:
    """The JSON data of one file or line. Raises SourceError, also for what Python's own reader would alter: a key given twice,
    a number out of range. A byte order mark is tolerated."""
    try:
        data = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_object, parse_float=_float, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise SourceError(f"not valid UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise SourceError(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise SourceError(f"not valid JSON: {error}") from error
    _check_depth(data)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object gives {describe(key)} twice")
        found[key] = value
    return found


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:30]} is no number that can be kept")


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _children(value)]
        if not level:
            return
    raise SourceError(f"nested deeper than {MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inner if isinstance(item, dict | list)]


def object_at(data: Any, where: str) -> dict[str, Any]:
    """A copy of the object, to take fields from."""
    if not isinstance(data, dict):
        raise SourceError(f"{where}: must be an object, got {describe(data)}")
    return dict(data)


def take_list(data: dict[str, Any], key: str, where: str) -> list[Any]:
    """Remove a list that must be there."""
    if key not in data:
        raise SourceError(f"{where}: required and missing")
    if not isinstance(data[key], list):
        raise SourceError(f"{where}: must be a list, got {describe(data[key])}")
    found: list[Any] = data.pop(key)
    return found


def take_text(data: dict[str, Any], key: str) -> str | None:
    """Remove a text; None, and `data` as it was, where there is none or it is something else."""
    return data.pop(key) if isinstance(data.get(key), str) else None


def require_text(data: dict[str, Any], key: str, where: str) -> str:
    """Remove a text that must be there."""
    if key not in data:
        raise SourceError(f"{where}: required and missing")
    if not isinstance(data[key], str):
        raise SourceError(f"{where}: must be text, got {describe(data[key])}")
    found: str = data.pop(key)
    return found


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {key: value for key, value in fields.items() if value is not None}


def describe(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
