"""Whether code is that of its file: what is in memory, held against what files that nobody can change compile to."""

from __future__ import annotations

import importlib
import os
from types import CodeType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

MOST_WRAPPERS = 20
INNER = ("__wrapped__", "__func__", "func")
FROZEN = ("_frozen_importlib", "_frozen_importlib_external")  # what imports modules has no file


class Codes:
    """Of the files below `roots`. `known`: code that was there before the repository's. pytest rewrites assertions in some files:
    both forms are known, the other with the settings of `config` once it is set."""

    def __init__(self, suite: str, roots: Iterable[str], known: Iterable[CodeType]) -> None:
        self.config: Any = None
        self._suite = f"{suite}/"
        self._roots = (self._suite, *(f"{root}/" for root in (*roots, os.path.dirname(os.__file__))))
        frozen = [value.__code__ for name in FROZEN for value in _functions(importlib.import_module(name))]
        self._known = {inner for code in (*known, *frozen) for inner in _inside(code)}
        self._rewrite = importlib.import_module("_pytest.assertion.rewrite")._rewrite_test
        self._path = importlib.import_module("pathlib").Path
        self._files: dict[tuple[str, bool], set[CodeType]] = {}
        self._classes: set[type] = set()
        self._seen: dict[int, object] = {}  # honest ones, by identity: to compare code takes long

    def honest(self, code: object) -> bool:
        if self._seen.get(id(code)) is code:
            return True
        if not isinstance(code, CodeType):
            return False
        if code in self._known or (code.co_filename.startswith(self._roots) and code in self._of(code.co_filename)):
            self._seen[id(code)] = code
            return True
        return False

    def replaced(self, item: Any) -> str | None:
        """The name of a function of this test's file that is not what the file says, its own first; None where all are."""
        function, module = getattr(item, "function", None), getattr(item, "module", None)
        if function is not None and not (self._of_suite(function) and all(map(self.honest, _layers(function)))):
            return str(item.name)
        if module is None:
            return None
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not self._of_suite(value):
                return name
        return None

    def foreign(self, thing: Any) -> str | None:
        """The name of a method of this part of the runner that the runner does not have; None where there is none."""
        own = type(thing)
        for name in getattr(thing, "__dict__", {}):
            if isinstance(getattr(own, name, None), FunctionType):
                return f"{own.__name__}.{name}"
        for kind in own.__mro__[:-1]:
            if kind in self._classes:
                continue
            for value in _functions(kind):
                if not value.__name__.startswith("__") and not self.honest(value.__code__):
                    return f"{kind.__name__}.{value.__name__}"
            self._classes.add(kind)
        return None

    def _of_suite(self, function: Any) -> bool:
        code = _layers(function)[-1]
        return self.honest(code) and code.co_filename.startswith(self._suite)

    def _of(self, path: str) -> set[CodeType]:
        key = path, self.config is None
        if key not in self._files:
            file = self._path(path)
            try:
                plain = compile(file.read_bytes(), path, "exec", dont_inherit=True)
                self._files[key] = {*_inside(plain), *_inside(self._rewrite(file, self.config)[1])}
            except (OSError, SyntaxError, ValueError):  # there is no such file, whatever its code says
                self._files[key] = set()
        return self._files[key]


def _layers(function: Any) -> list[Any]:
    """The code of a function and of those that it wraps; that of what is no function is None."""
    codes = [getattr(function, "__code__", None)]
    for _ in range(MOST_WRAPPERS):
        within = [inner for name in INNER if (inner := getattr(function, name, None)) is not None]
        if not within:
            break
        function = within[0]
        codes.append(getattr(function, "__code__", None))
    return codes


def _functions(owner: Any) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(inner, FunctionType):
            yield inner


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)
