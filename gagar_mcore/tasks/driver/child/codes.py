"""Whether a test runs the code of its file: what was compiled when it was imported, held against what the file compiles to."""

from __future__ import annotations

import importlib
from types import CodeType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_WRAPPERS = 20


class Codes:
    """Of the files below `suite`, which nobody can change. pytest rewrites assertions of some: both forms are known."""

    def __init__(self, suite: str, config: Any) -> None:
        self._suite = f"{suite}/"
        self._config = config
        self._rewrite = importlib.import_module("_pytest.assertion.rewrite")._rewrite_test
        self._path = importlib.import_module("pathlib").Path
        self._known: dict[str, set[CodeType]] = {}

    def replaced(self, item: Any) -> str | None:
        """The name of a function of this test's file that is not what the file says, its own first; None where all are."""
        function, module = getattr(item, "function", None), getattr(item, "module", None)
        if function is not None and not self._honest(function):
            return str(item.name)
        if module is None:
            return None
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not self._honest(value):
                return name
        return None

    def _honest(self, function: Any) -> bool:
        for _ in range(MOST_WRAPPERS):
            within = [
                inner for name in ("__wrapped__", "__func__", "func") if (inner := getattr(function, name, None)) is not None
            ]
            if not within:
                break
            function = within[0]
        code = getattr(function, "__code__", None)
        return isinstance(code, CodeType) and code.co_filename.startswith(self._suite) and code in self._of(code.co_filename)

    def _of(self, path: str) -> set[CodeType]:
        if path not in self._known:
            file = self._path(path)
            plain = compile(file.read_bytes(), path, "exec", dont_inherit=True)
            self._known[path] = {*_inside(plain), *_inside(self._rewrite(file, self._config)[1])}
        return self._known[path]


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)
