"""What a policy reads and did not write."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "tool"]


@dataclass(frozen=True, slots=True)
class Context:
    """One message; that of a tool is what it printed."""

    role: Role
    text: str
