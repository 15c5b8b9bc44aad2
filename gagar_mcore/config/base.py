"""The base of all recipe sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys and wrong types are refused; values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
