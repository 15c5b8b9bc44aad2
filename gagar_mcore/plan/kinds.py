"""Amounts of one thing, by kind."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ByKind:
    """Its fields, given by those that derive from it, are numbers of one unit."""

    @property
    def total(self) -> float:
        return sum(getattr(self, kind.name) for kind in fields(self))
