"""Rules on single added lines: debugging left behind, code that does nothing, special cases, style."""

import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gagar_mcore.grading.change import LONG_LINE, AddedLine, Change, FileChange
from gagar_mcore.grading.citations import patch_citation
from gagar_mcore.grading.findings import Finding
from gagar_mcore.grading.source import Line

LINES_ABOVE = 50

_DEBUG = re.compile(
    r"(?<!\. )\b(print|pprint|breakpoint|var_dump|println !|dbg !|printf) \("
    r"|\b(console \. (log|debug)|System \. (out|err) \. print\w*|fmt \. Print\w*) \("
    r"|\b(sys \. std(out|err) \. write|i?pdb \. set_trace) \("
    r"|\bimport i?pdb\b"
)
_SIDE_EFFECT = re.compile(
    r"(?<!\. )\b(eval|exec|open|__import__) \(|\b(subprocess|socket|requests|urllib|shutil|ctypes) \."
    r"|\bos \. (system|environ|remove|popen)\b|^global \w"
)
_TEST_CONTROL = re.compile(r"PYTEST_CURRENT_TEST|sys \. modules .{0,100}(pytest|unittest)")
_LEAVES = frozenset({"return", "raise", "continue", "break"})
_CONSTANTS = frozenset({"True", "False", "0", "1"})


@dataclass(frozen=True, slots=True)
class _Habits:
    """How a file was before the patch: its words, its longest line, and whether it indents with tabs or blanks alone."""

    words: str
    longest: int
    tabs: bool
    blanks: bool

    @classmethod
    def of(cls, file: FileChange) -> "_Habits":
        tabs, blanks = "\n\t" in file.base, "\n  " in file.base
        words = "\n".join(" ".join(line.words) for line in file.base_lines)
        longest = max(map(len, file.base.split("\n")))
        return cls(words, max(LONG_LINE, longest), tabs and not blanks, blanks and not tabs)


def line_findings(change: Change) -> Iterator[Finding]:
    for file in change.files:
        habits = _Habits.of(file)
        for new in file.added:
            for rule in (*_code_rules(file, new, habits), *_style_rules(file, new, habits)):
                yield Finding(rule, patch_citation(file.path, new.number))


def _code_rules(file: FileChange, new: AddedLine, habits: _Habits) -> Iterator[str]:
    """What the file did already is no finding."""
    words, code = " ".join(new.line.words), " ".join(new.line.code)
    if not file.is_test:
        for rule, pattern in (("debug_output", _DEBUG), ("side_effect", _SIDE_EFFECT)):
            match = pattern.search(words)
            if match and match[0] not in habits.words:
                yield rule
        if _TEST_CONTROL.search(code):
            yield "test_control"
    if new.line.starts and file.path.endswith(".py"):
        if _is_idle(file, new):
            yield "idle_statement"
        if _swallows(file, new):
            yield "swallowed_error"


def _is_idle(file: FileChange, new: AddedLine) -> bool:
    code = new.line.code
    if len(code) == 3 and code[0] == code[2] and code[1] == "=":
        return True
    if len(code) == 1 and (code[0].isidentifier() or code[0].isdigit()) and not keyword.iskeyword(code[0]):
        return True
    if len(code) == 3 and code[0] in ("if", "while") and code[1] in _CONSTANTS:
        return True
    previous = _code_before(file, new.number)
    return (
        previous is not None
        and previous[1].code[0] in _LEAVES
        and previous[1].starts
        and _indent(previous[0]) == _indent(new.text)
    )


def _code_before(file: FileChange, number: int) -> tuple[str, Line] | None:
    """The nearest line of code above line `number`, raw and read."""
    if not file.complete:
        return None
    above = range(number - 2, max(-1, number - 2 - LINES_ABOVE), -1)
    return next(((file.raw[i], file.lines[i]) for i in above if file.lines[i].code), None)


def _swallows(file: FileChange, new: AddedLine) -> bool:
    words = new.line.words
    if words[:1] != ("except",) or not (words[1:2] == (":",) or {"Exception", "BaseException"} & set(words)):
        return False
    following: Sequence[Line] = file.lines[new.number : new.number + 1] if file.complete else ()
    return words[-1] == "pass" or any(line.code == ("pass",) for line in following)


def _style_rules(file: FileChange, new: AddedLine, habits: _Habits) -> Iterator[str]:
    text = new.text.removesuffix("\r")
    if text != text.rstrip():
        yield "trailing_blanks"
    if len(text) > habits.longest:
        yield "long_line"
    if file.path.endswith(".py") and ";" in new.line.words:
        yield "several_statements"
    if (text.startswith("\t") and habits.blanks) or (text.startswith("  ") and habits.tabs):
        yield "other_indentation"


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
