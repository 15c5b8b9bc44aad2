"""Numbers of which a record has one a token: compact in memory, and in its JSON."""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any


def pack(code: str, numbers: Sequence[Any]) -> "array[Any]":
    """The numbers as an array of `code` (int32 `i`, float32 `f`, uint8 `B`); one that is such an array already as it is. Raises
    ValueError for what is no such number."""
    if isinstance(numbers, array) and numbers.typecode == code:
        return numbers
    try:
        return array(code, numbers)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Packed:
    """The field in JSON: a string, the little-endian bytes in base64; a list of the numbers is read as well."""

    code: str

    def read(self, value: Any) -> "array[Any]":
        if not isinstance(value, str):
            return pack(self.code, value)
        numbers = array(self.code)
        numbers.frombytes(b64decode(value, validate=True))
        return numbers

    def write(self, numbers: Sequence[Any]) -> str:
        return b64encode(pack(self.code, numbers)).decode()

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        write = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=write)


Int32 = Annotated[Sequence[int], Packed("i")]
Float32 = Annotated[Sequence[float], Packed("f")]
Uint8 = Annotated[Sequence[int], Packed("B")]
