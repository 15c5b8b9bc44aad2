"""Lines of source code as code and comment. Tokens only: hostile text is never parsed into a tree, imported or run."""

import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

MAX_CHARACTERS = 1 << 18
MAX_LINE = 4000

_WORD = re.compile(r"\w+|[^\w\s]")
_STRING = re.compile(r"""^[A-Za-z]{0,2}["']""")
_HEADER = re.compile(r"[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)")
_COMMENT_MARKS = {
    ("py", "rb", "sh", "bash", "toml", "yaml", "yml", "pl", "r", "cfg"): "#",
    ("js", "ts", "jsx", "tsx", "go", "rs", "java", "c", "h", "cc", "cpp", "hpp", "cs", "kt", "swift", "php", "scala"): "//",
    ("sql", "lua", "hs"): "--",
}
_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its tokens without the comment, and the comment's text without its mark, None where there is none; in Python a
    string that stands alone is a comment. `starts`: a statement starts here, as far as one can tell."""

    code: tuple[str, ...]
    comment: str | None = None
    starts: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        """The code without its string literals."""
        return tuple(token for token in self.code if not _STRING.match(token))


def read_lines(text: str, path: str) -> list[Line]:
    """One Line for each line of `text`, as `split("\\n")` counts them. What is no Python, or too long, is read line by line."""
    raw = text.split("\n")
    if path.endswith((".py", ".pyi")) and len(text) <= MAX_CHARACTERS and max(map(len, raw)) <= MAX_LINE:
        try:
            return _python_lines(text)
        except (tokenize.TokenError, SyntaxError, ValueError):
            pass
    mark = comment_mark(path)
    return [_plain_line(line, mark) for line in raw]


def comment_mark(path: str) -> str | None:
    """How a comment begins in files of this kind, None where it is not known."""
    suffix = path.rpartition(".")[2].lower()
    return next((mark for suffixes, mark in _COMMENT_MARKS.items() if suffix in suffixes), None)


def enclosing(lines: Sequence[str], number: int) -> str:
    """Dotted name of the functions and classes around line `number` (from 1) in Python-like text, "" at the top level."""
    names: list[str] = []
    limit = 1 << 30
    for line in reversed(lines[:number]):
        indent = len(line) - len(line.lstrip())
        if not line.strip() or indent >= limit:
            continue
        match = _HEADER.match(line)
        names += [match[1]] if match else []
        limit = indent
        if limit == 0:
            break
    return ".".join(reversed(names))


def _python_lines(text: str) -> list[Line]:
    raw = text.split("\n")
    code: list[list[str]] = [[] for _ in raw]
    comments: list[str | None] = [None] * len(raw)
    starts = [False] * len(raw)
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text.replace("\r", " ")).readline):
        row, end = token.start[0] - 1, token.end[0]
        if token.type == tokenize.COMMENT:
            comments[row] = token.string.lstrip("#").strip()
        elif token.type == tokenize.NEWLINE:
            if len(statement) == 1 and statement[0].type == tokenize.STRING:
                _make_prose(statement[0], code, comments)
            statement = []
        elif token.type not in _LAYOUT:
            starts[row] |= not statement
            statement.append(token)
            code[row].append(token.string)
            for inner in range(row + 1, end):
                code[inner].append(raw[inner])
    return [Line(tuple(c), comment, s and bool(c)) for c, comment, s in zip(code, comments, starts, strict=True)]


def _make_prose(string: tokenize.TokenInfo, code: list[list[str]], comments: list[str | None]) -> None:
    """A statement that is one string, a docstring say, is no code but a comment."""
    for row, text in enumerate(string.string.split("\n"), string.start[0] - 1):
        code[row], comments[row] = [], text.strip()


def _plain_line(line: str, mark: str | None) -> Line:
    stripped = line.strip()
    if len(stripped) > MAX_LINE:
        return Line((stripped,))
    if mark and stripped.startswith(mark):
        return Line((), stripped.lstrip(mark).strip())
    code, found, comment = stripped.partition(f" {mark}") if mark else (stripped, "", "")
    if found and code.count('"') % 2 == 0 and code.count("'") % 2 == 0:
        return Line(tuple(_WORD.findall(code)), comment.strip())
    return Line(tuple(_WORD.findall(stripped)))
