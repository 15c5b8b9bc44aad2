"""Bugs in real code: one place of its syntax tree changed as a slip of the hand would."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//")}
_BOOLEAN = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


@dataclass(frozen=True, slots=True)
class Seed:
    """`text` is the whole file with the bug; `line` counts from 1."""

    kind: str
    function: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class _Change:
    start: int
    end: int
    text: str


class _Source:
    """A file's text, and where the nodes of its tree stand in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        lines = text.splitlines(keepends=True)
        self._encoded = [line.encode() for line in lines]
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.text[self.start(node) : self.end(node)]

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._encoded[line - 1][:column].decode())


def seeds(text: str, kind: str) -> list[Seed]:
    """Every bug of a kind that can be made in the functions of a file. Raises SyntaxError."""
    return [seed for place in _places(text, kind) if (seed := _seed(text, kind, place)) is not None]


def draw_seed(text: str, rng: Random) -> Seed | None:
    """One bug, its kind drawn first: kinds with many places are no more frequent than others. None where none came about."""
    for kind in rng.sample(list(KINDS), len(KINDS)):
        places = _places(text, kind)
        if places and (drawn := _seed(text, kind, rng.choice(places))) is not None:
            return drawn
    return None


def _places(text: str, kind: str) -> list[tuple[str, _Change]]:
    source = _Source(text)
    return [(function, change) for function, node in _nodes(ast.parse(text)) for change in KINDS[kind](node, source)]


def _seed(text: str, kind: str, place: tuple[str, _Change]) -> Seed | None:
    """None where the change is none, or does not parse."""
    function, change = place
    changed = text[: change.start] + change.text + text[change.end :]
    if changed == text or not _parses(changed):
        return None
    return Seed(kind, function, text.count("\n", 0, change.start) + 1, changed)


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The nodes in the bodies of functions, with the function's dotted name; annotations, defaults and docstrings left out."""
    stack: list[tuple[str, bool, ast.AST]] = [("", False, tree)]
    while stack:
        name, inside, node = stack.pop()
        if inside:
            yield name, node
        body = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ast.iter_child_nodes(node):
            if isinstance(child, ast.AnnAssign) or _is_docstring(child):
                continue
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            title = f"{name}.{child.name}".lstrip(".") if named else name  # type: ignore[attr-defined]
            stack.append((title, inside or body, child))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _between(source: _Source, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[_Change]:
    """The operator between two operands."""
    start, end = source.end(left), source.start(right)
    between = source.text[start:end]
    if "#" not in between and between.count(old) == 1:
        yield _Change(start, end, between.replace(old, new))


def _comparison(node: ast.AST, source: _Source) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(source, node.left, node.comparators[0], *_COMPARISONS[type(node.ops[0])])


def _arithmetic(node: ast.AST, source: _Source) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield from _between(source, node.left, node.right, *_ARITHMETIC[type(node.op)])


def _boolean(node: ast.AST, source: _Source) -> Iterator[_Change]:
    if isinstance(node, ast.BoolOp):
        yield from _between(source, node.values[0], node.values[1], *_BOOLEAN[type(node.op)])


def _condition(node: ast.AST, source: _Source) -> Iterator[_Change]:
    if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        text = source.of(node.test)
        yield _Change(source.start(node.test), source.end(node.test), text[4:] if text.startswith("not ") else f"not {text}")


def _constant(node: ast.AST, source: _Source) -> Iterator[_Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        other = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
        yield _Change(source.start(node), source.end(node), other)


def _returned(node: ast.AST, source: _Source) -> Iterator[_Change]:
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield _Change(source.start(node.value), source.end(node.value), "None")


def _forgotten(node: ast.AST, source: _Source) -> Iterator[_Change]:
    """A call for its effect, or an assignment to an attribute or item, left out."""
    if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or (
        isinstance(node, ast.Assign | ast.AugAssign)
        and isinstance(node.targets[0] if isinstance(node, ast.Assign) else node.target, ast.Attribute | ast.Subscript)
    ):
        yield _Change(source.start(node), source.end(node), "pass")


def _guard(node: ast.AST, source: _Source) -> Iterator[_Change]:
    """A condition whose one consequence is to leave, without that."""
    if isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise | ast.Return | ast.Continue):
        yield _Change(source.start(node.body[0]), source.end(node.body[0]), "pass")


def _arguments(node: ast.AST, source: _Source) -> Iterator[_Change]:
    """The first two arguments of a call in the wrong order."""
    if isinstance(node, ast.Call) and len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
        first, second = node.args[:2]
        between = source.text[source.end(first) : source.start(second)]
        yield _Change(source.start(first), source.end(second), source.of(second) + between + source.of(first))


def _keyword(node: ast.AST, source: _Source) -> Iterator[_Change]:
    """The last keyword argument of a call, left out."""
    if isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg and len(node.args) + len(node.keywords) >= 2:
        last = node.keywords[-1]
        before = max(source.end(some) for some in [*node.args, *(k.value for k in node.keywords[:-1])])
        if before < source.end(last.value):
            yield _Change(before, source.end(last.value), "")


def _slice(node: ast.AST, source: _Source) -> Iterator[_Change]:
    """A slice without one of its bounds."""
    if isinstance(node, ast.Slice):
        for bound in filter(None, (node.lower, node.upper)):
            yield _Change(source.start(bound), source.end(bound), "")


KINDS: dict[str, Callable[[ast.AST, _Source], Iterator[_Change]]] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "boolean operator": _boolean,
    "condition": _condition,
    "constant": _constant,
    "returned value": _returned,
    "forgotten statement": _forgotten,
    "guard": _guard,
    "order of arguments": _arguments,
    "keyword argument": _keyword,
    "slice": _slice,
}
