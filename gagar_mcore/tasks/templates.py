"""The functions that generated repositories are made of: small, pure, one idea each.

`K` stands for a constant that is drawn anew for each repository. Names of variables are the same everywhere, so that
a small policy has few of them to learn."""

import re
from dataclasses import dataclass
from random import Random
from textwrap import dedent
from typing import Literal

Kind = Literal["int", "small", "ints", "some_ints", "word"]
Argument = int | str | list[int]


@dataclass(frozen=True, slots=True)
class Template:
    """`kinds` says what to draw for each parameter; `source` is the correct function, without a trailing newline."""

    name: str
    kinds: tuple[Kind, ...]
    source: str

    @property
    def parameters(self) -> list[str]:
        return ["x", "y", "z"][: len(self.kinds)]


def draw_argument(kind: Kind, rng: Random) -> Argument:
    match kind:
        case "int":
            return rng.choice([-3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 9, 12])
        case "small":
            return rng.randint(0, 5)
        case "ints":
            return [rng.randint(-2, 9) for _ in range(rng.randint(0, 4))]
        case "some_ints":
            return [rng.randint(-2, 9) for _ in range(rng.randint(2, 4))]
        case "word":
            return "".join(rng.choice("abcd") for _ in range(rng.randint(1, 4)))


def with_constant(text: str, constant: int) -> str:
    return re.sub(r"\bK\b", str(constant), text)


def _template(source: str, *kinds: Kind) -> Template:
    source = dedent(source).strip()
    return Template(source.removeprefix("def ").partition("(")[0], kinds, source)


_ALL = (
    _template(
        """
        def clamp(x, y, z):
            if x < y:
                return y
            if x > z:
                return z
            return x
        """,
        *("int", "int", "int"),
    ),
    _template(
        """
        def gap(x, y):
            if x > y:
                return x - y
            return y - x
        """,
        *("int", "int"),
    ),
    _template(
        """
        def least(x, y):
            if x < y:
                return x
            return y
        """,
        *("int", "int"),
    ),
    _template(
        """
        def falling(x, y, z):
            return x > y and y > z
        """,
        *("int", "int", "int"),
    ),
    _template(
        """
        def size(x):
            if x < 0:
                return -x
            return x
        """,
        "int",
    ),
    _template(
        """
        def sign(x):
            if x > 0:
                return 1
            if x < 0:
                return -1
            return 0
        """,
        "int",
    ),
    _template(
        """
        def product(x):
            out = 1
            for i in range(1, x + 1):
                out = out * i
            return out
        """,
        "small",
    ),
    _template(
        """
        def total(x):
            out = 0
            for i in x:
                out = out + i
            return out
        """,
        "ints",
    ),
    _template(
        """
        def above(x):
            out = 0
            for i in x:
                if i > K:
                    out += 1
            return out
        """,
        "ints",
    ),
    _template(
        """
        def evens(x):
            out = []
            for i in x:
                if i % 2 == 0:
                    out.append(i)
            return out
        """,
        "ints",
    ),
    _template(
        """
        def shift(x):
            out = []
            for i in x:
                out.append(i + K)
            return out
        """,
        "ints",
    ),
    _template(
        """
        def tally(x):
            out = {}
            for i in x:
                out[i] = out.get(i, 0) + 1
            return out
        """,
        "ints",
    ),
    _template(
        """
        def top(x):
            out = x[0]
            for i in x:
                if i > out:
                    out = i
            return out
        """,
        "some_ints",
    ),
    _template(
        """
        def mean(x):
            out = sum(x)
            return out // len(x)
        """,
        "some_ints",
    ),
    _template(
        """
        def span(x):
            return x[-1] - x[0]
        """,
        "some_ints",
    ),
    _template(
        """
        def width(x):
            return max(x) - min(x)
        """,
        "some_ints",
    ),
    _template(
        """
        def find(x, y):
            for i in range(len(x)):
                if x[i] == y:
                    return i
            return -1
        """,
        *("ints", "int"),
    ),
    _template(
        """
        def dot(x, y):
            out = 0
            for i in range(min(len(x), len(y))):
                out += x[i] * y[i]
            return out
        """,
        *("ints", "ints"),
    ),
    _template(
        """
        def merge(x, y):
            out = list(x)
            for i in y:
                if i not in out:
                    out.append(i)
            return out
        """,
        *("ints", "ints"),
    ),
    _template(
        """
        def flip(x):
            out = ''
            for i in x:
                out = i + out
            return out
        """,
        "word",
    ),
    _template(
        """
        def mirror(x):
            return x == x[::-1]
        """,
        "word",
    ),
    _template(
        """
        def label(x, y):
            out = x + '-' + y
            return out.upper()
        """,
        *("word", "word"),
    ),
    _template(
        """
        def repeat(x, y):
            if y < 1:
                return ''
            return x * y
        """,
        *("word", "int"),
    ),
    _template(
        """
        def common(x, y):
            out = 0
            for i in x:
                if i in y:
                    out += 1
            return out
        """,
        *("word", "word"),
    ),
)

TEMPLATES: dict[str, Template] = {template.name: template for template in _ALL}
