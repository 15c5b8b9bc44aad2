"""What the test runner is made of, noted before code of the repository is imported, and looked at again."""

from __future__ import annotations

import builtins
import importlib
import itertools
import sys
from types import BuiltinFunctionType, CodeType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

COMPARING = (  # what tests say what they expect by
    *("math", "cmath", "operator", "functools", "itertools", "collections", "copy", "json", "re", "difflib"),
    *("decimal", "fractions", "statistics", "inspect", "types", "posixpath"),
)
WATCHED = ("_pytest", "pytest", "pluggy", "unittest", "outcomes", "codes", "noted", "reached", *COMPARING)
BY_PYTEST = {"_getini_unknown_type"}  # what pytest itself replaces, in legacypath.py
KINDS = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property)
PARTS = 40
MOST_NAMED = 5


class Noted:
    """The functions and classes of pytest, pluggy, unittest, the runner and some of the standard library, and the builtins. Each
    is named once."""

    def __init__(self) -> None:
        for name in COMPARING:
            importlib.import_module(name)
        self._all = [*_functions(), *((vars(builtins), name, value, None, f"builtins.{name}") for name, value in _builtins())]
        self._parts = itertools.cycle([self._all[part::PARTS] for part in range(PARTS)])
        self._said: set[str] = set()

    @property
    def codes(self) -> list[CodeType]:
        """Of all functions that were noted."""
        return [code for _, _, value, own, _ in self._all for code in (own, *_codes(value)) if code is not None]

    def replaced(self) -> list[str]:
        """What is not as it was."""
        return self._changed(self._all)

    def some_replaced(self) -> list[str]:
        """Of the next part alone: all of it takes as long as a short test."""
        return self._changed(next(self._parts))

    def _changed(self, some: Iterable[tuple[Any, ...]]) -> list[str]:
        new = [
            title
            for space, name, value, code, title in some
            if (space.get(name) is not value or (code is not None and value.__code__ is not code)) and title not in self._said
        ]
        self._said.update(new)
        return new[:MOST_NAMED]


def _functions() -> Iterator[tuple[Any, ...]]:
    """Where it stands, its name there, the value, its code where it has some, and what to call it."""
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] not in WATCHED:
            continue
        own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
        owners: list[Any] = [module, *own]
        for owner in owners:
            title = f"{owner.__module__}.{owner.__name__}" if isinstance(owner, type) else owner.__name__
            for name, value in list(vars(owner).items()):
                if isinstance(value, KINDS) and name not in BY_PYTEST:
                    yield vars(owner), name, value, _code_of(value), f"{title}.{name}"


def _code_of(value: Any) -> CodeType | None:
    return value.__code__ if isinstance(value, FunctionType) else None


def _codes(value: Any) -> Iterator[CodeType]:
    """Of a method that is wrapped."""
    for inner in (getattr(value, "__func__", None), getattr(value, "fget", None)):
        if isinstance(inner, FunctionType):
            yield inner.__code__


def _builtins() -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in vars(builtins).items() if name != "_")
