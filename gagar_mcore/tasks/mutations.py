"""Bugs: one lexeme of one line replaced by another that still reads well."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from gagar_mcore.tasks.templates import TEMPLATES

_LEXEME = re.compile(r"not in|'\w*'|\w+|//|[-+<>=!]=|[-+*%<>]")

_ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "+": ("-", "*"),
    "-": ("+",),
    "*": ("+", "-"),
    "//": ("*", "%"),
    "%": ("//",),
    "<": ("<=", ">"),
    ">": (">=", "<"),
    "==": ("!=", "<"),
    "+=": ("-=", "*="),
    "not in": ("in",),
    "and": ("or",),
    "max": ("min",),
    "min": ("max",),
    "upper": ("lower",),
    "out": ("i",),
    "i": ("out",),
    "x": ("y",),
    "y": ("x", "z"),
    "z": ("y",),
    "0": ("1",),
    "1": ("0", "2"),
    "2": ("3",),
}
_VARIABLES = {"x", "y", "z", "out", "i"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """`line` counts from 0 at the `def` line; `text` is the whole replaced line, `K` still standing for the constant."""

    line: int
    text: str


def _line_variants(line: str, variables: set[str]) -> Iterator[str]:
    for match in _LEXEME.finditer(line):
        for other in _ALTERNATIVES.get(match.group(), ()):
            if other not in _VARIABLES or other in variables:
                yield line[: match.start()] + other + line[match.end() :]


@cache
def mutations(template: str) -> tuple[Mutation, ...]:
    """Every single-line mutation of a template's body, in a fixed order. Some leave the behaviour as it was."""
    source = TEMPLATES[template].source
    variables = _VARIABLES & set(_LEXEME.findall(source))
    lines = source.split("\n")
    return tuple(
        Mutation(number, text)
        for number, line in enumerate(lines)
        if number > 0
        for text in dict.fromkeys(_line_variants(line, variables))
    )
