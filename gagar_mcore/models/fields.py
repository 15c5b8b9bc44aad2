"""The fields of a `config.json` that are read, with their types and what must agree among them."""

from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SHOWN_FAULTS = 3

Size = Annotated[int, Field(ge=1, le=1 << 31)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Experts = Annotated[int, Field(ge=1, le=10_000)]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class Fields(BaseModel):
    """What both families have. Other keys are not looked at. `A_LAYER`: fields with one entry for each layer."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    A_LAYER: ClassVar[tuple[str, ...]] = ()
    EXPERTS: ClassVar[str]

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    intermediate_size: Size
    moe_intermediate_size: Size
    num_experts_per_tok: Size
    max_position_embeddings: Size
    initializer_range: Number = 0.02

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for name in self.A_LAYER:
            if (entries := len(getattr(self, name))) != self.num_hidden_layers:
                raise ValueError(
                    f"{name} has {entries} entries, num_hidden_layers is {self.num_hidden_layers}; correct one of them"
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: {self.num_key_value_heads} does not divide num_attention_heads {self.num_attention_heads}"
            )
        if self.num_experts_per_tok > (experts := getattr(self, self.EXPERTS)):
            raise ValueError(f"num_experts_per_tok: {self.num_experts_per_tok} is more than {self.EXPERTS} {experts}")
        return self


AnyFields = TypeVar("AnyFields", bound=Fields)


def read_fields(kind: type[AnyFields], data: dict[str, Any]) -> AnyFields:
    """Raises ValueError, one line that names each field at fault."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        faults = [_explain(fault) for fault in error.errors()]
    more = f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
    raise ValueError("; ".join(faults[:SHOWN_FAULTS]) + more)


def _explain(fault: Any) -> str:
    name = ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return f"field {name!r} is missing"
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "model_type":
        return f"{name}: should be an object, got {_shortened(repr(fault['input']))}"
    return f"{name}: {fault['msg'].lower()}, got {_shortened(repr(fault['input']))}"


def _shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
