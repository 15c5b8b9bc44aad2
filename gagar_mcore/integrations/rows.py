"""What one row of another stack's batch tells the credit step: a group, a trajectory, a reward, and the `gagar_*` fields."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from gagar_mcore.credit import CreditParams
from gagar_mcore.integrations.jsonl_schema import explain

PREFIX = "gagar_"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RowLengths(_Strict):
    """As `records.Lengths`."""

    turns: float
    input_tokens: float
    output_tokens: float


class Notes(_Strict):
    """The `gagar_*` fields of a row, all optional. The judgement (`factor` or `grade`, and `hack`) of a row that does not pass is
    not read.

    valid: false where the infrastructure failed the trajectory. factor: discount in (0, 1]; none and NaN are no factor.
    grade: what the grader says, as in a verdict of `gagar credit`. hack: true for a confirmed hack.
    lengths: what the length penalty asks for.
    fallback: why the whole group has no verdict: `late`, `failed: ...`."""

    valid: bool = True
    factor: Any = None
    grade: Any = None
    hack: Any = None
    lengths: RowLengths | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A trajectory, or a segment of one: rows of one group with the same `id` are one trajectory and say the same of it.
    `reward` lies in [0, 1]."""

    group: Hashable
    id: str
    reward: float
    notes: Notes

    @property
    def valid(self) -> bool:
        return self.notes.valid

    @property
    def lengths(self) -> RowLengths | None:
        return self.notes.lengths


def read_notes(values: Mapping[str, Any], where: str) -> Notes:
    """The `gagar_*` entries of `values`; other keys are not ours. Raises ValueError naming `where` and the field."""
    own = {key.removeprefix(PREFIX): _plain(value) for key, value in values.items() if key.startswith(PREFIX)}
    try:
        return Notes(**{key: value for key, value in own.items() if value is not None})
    except ValidationError as error:
        known = ", ".join(PREFIX + name for name in Notes.model_fields)
        raise ValueError(f"{where}: {PREFIX}{explain(error)}; the fields are {known}") from error


def _plain(value: Any) -> Any:
    """Numpy scalars as Python's own; NaN, how a column of floats says that nothing is there, as None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and value != value else value


def read_params(settings: Mapping[str, Any] | None) -> CreditParams:
    """The constants of the credit step out of a stack's own configuration. Raises ValueError naming the field."""
    known = [field.name for field in fields(CreditParams)]
    values: dict[str, Any] = {}
    for key, value in (settings or {}).items():
        if key not in known:
            raise ValueError(f"gagar.{key}: unknown field; the fields are {', '.join(known)}")
        values[key] = value if isinstance(value, str | int | float | None) else tuple(value)
    try:
        return CreditParams(**values)
    except ValueError as error:
        raise ValueError(f"gagar.{error}") from error
