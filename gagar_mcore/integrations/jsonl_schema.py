"""One line of input of `gagar credit`: the group, and the verdict in it."""

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gagar_mcore.credit import FactorVerdict, VerdictError
from gagar_mcore.records.types import Grade, Verdict

Id = Annotated[str, Field(min_length=1)]
Criterion = Annotated[int, Field(ge=1, le=5)]
Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LineError(ValueError):
    """A line that is no group; the message names the field."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TrajectoryLine(_Strict):
    """`turns`, `input_tokens` and `output_tokens`, as in `records.Lengths`, are needed where the length penalty is on."""

    id: Id
    reward: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    valid: bool
    turns: Length | None = None
    input_tokens: Length | None = None
    output_tokens: Length | None = None

    @property
    def lengths(self) -> Self:
        return self


class GroupLine(_Strict):
    """A group as another stack hands it over. `verdict` is raw: one that cannot be used is no bad line."""

    group_id: Id
    trajectories: list[TrajectoryLine]
    verdict: Any = None

    @field_validator("trajectories")
    @classmethod
    def _ids_once(cls, trajectories: list[TrajectoryLine]) -> list[TrajectoryLine]:
        seen: set[str] = set()
        for trajectory in trajectories:
            if trajectory.id in seen:
                raise ValueError(f"id {trajectory.id!r} is given twice")
            seen.add(trajectory.id)
        return trajectories


class GradeLine(_Strict):
    approach: Criterion
    precision: Criterion
    minimality: Criterion
    side_effects: Criterion
    consistency: Criterion
    rank: Annotated[int, Field(ge=1)] | None = None
    rewrite: bool = False
    workaround: bool = False
    severe_process: bool = False
    regression: bool = False


class VerdictLine(_Strict):
    factors: dict[str, Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]] | None = None
    grades: dict[str, GradeLine] | None = None
    hacks: list[str] = []

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.factors is None) == (self.grades is None):
            raise ValueError("give either factors or grades")
        return self


class _Repeated:
    """Stands for the value of a key that an object gives twice; no field accepts it."""


def parse_group(line: str) -> GroupLine:
    """Raises LineError naming the field."""
    try:
        line.encode()
        data = json.loads(line, object_pairs_hook=_object)
    except UnicodeEncodeError as error:
        raise LineError("not valid UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise LineError(f"not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise LineError(f"must be a JSON object, got {_describe(data)}")
    try:
        return GroupLine.model_validate(data)
    except ValidationError as error:
        raise LineError(explain(error)) from error


def parse_verdict(data: Any) -> Verdict | FactorVerdict:
    """Raises VerdictError naming the field; whether it fits the group is for `compute_credit` to say."""
    if not isinstance(data, dict):
        raise VerdictError(f"verdict: must be an object or null, got {_describe(data)}")
    try:
        verdict = VerdictLine.model_validate(data)
    except ValidationError as error:
        raise VerdictError(explain(error)) from error
    if verdict.factors is not None:
        return FactorVerdict(verdict.factors, verdict.hacks)
    grades = {id: Grade(**grade.model_dump()) for id, grade in (verdict.grades or {}).items()}
    return Verdict("input", grades, verdict.hacks)


def explain(error: ValidationError) -> str:
    """The first fault as `field: message, got value`, and how many more there are."""
    first, *more = error.errors(include_url=False)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
    message = {"missing": "required and missing", "extra_forbidden": "unknown field"}.get(first["type"])
    message = message or f"{_lower(first['msg'].removeprefix('Value error, '))}{_got(first['input'])}"
    rest = f" (and {len(more)} more)" if more else ""
    text = f"{where}: {message}{rest}" if where else f"{message}{rest}"
    return text.encode("ascii", "backslashreplace").decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = _Repeated() if key in found else value
    return found


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _got(value: Any) -> str:
    return "" if isinstance(value, dict | list) else f", got {_describe(value)}"


def _describe(value: Any) -> str:
    if isinstance(value, _Repeated):
        return "a key given twice"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
