"""The compact action grammar of small policies, as pure text work on files held in memory.

    view FILE FUNC    show one function, its lines numbered from 1
    edit:N:LINE       replace line N of the viewed function
    add:N:LINE        insert after line N of the viewed function
    new FILE:TEXT     create or replace a file
    done              end the session

A wrong action is answered `error`, a successful change `ok`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_FILE_CHARACTERS = 65_536
MAX_VIEW_LINES = 60

_FILE = r"[A-Za-z_]\w{0,40}(?:\.\w{1,10})?"
_VIEW = re.compile(rf"view ({_FILE}) ([A-Za-z_]\w{{0,60}})", re.ASCII)
_CHANGE = re.compile(r"(edit|add):([1-9]\d{0,4}):([^\r\n]*)", re.ASCII)
_NEW = re.compile(rf"new ({_FILE}):(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class View:
    """The function last viewed."""

    file: str
    function: str


@dataclass(frozen=True, slots=True)
class Show:
    target: View


@dataclass(frozen=True, slots=True)
class Change:
    """`insert`: a new line after `line`; else `line` is replaced. Lines count from 1 at the `def` line."""

    insert: bool
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Create:
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    pass


Action = Show | Change | Create | Done


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action does: the answer, the view from now on, and the whole new text of a file that it changed."""

    observation: str
    view: View | None
    file: str | None = None
    text: str = ""


def parse(action: str) -> Action | None:
    """None where the text is no action of the grammar."""
    if len(action) > MAX_FILE_CHARACTERS:
        return None
    if action == "done":
        return Done()
    if match := _VIEW.fullmatch(action):
        return Show(View(match[1], match[2]))
    if match := _CHANGE.fullmatch(action):
        return Change(match[1] == "add", int(match[2]), match[3])
    if match := _NEW.fullmatch(action):
        return Create(match[1], match[2])
    return None


def file_needed(action: Action, view: View | None) -> str | None:
    """The file whose present text `apply` reads."""
    if isinstance(action, Show):
        return action.target.file
    return view.file if isinstance(action, Change) and view else None


def apply(action: Action, view: View | None, files: Mapping[str, str]) -> Effect | None:
    """Carry out an action on `files`, which stays as it is. None where it is refused: no such file, function or line."""
    match action:
        case Done():
            return Effect("", view)
        case Create(file, text):
            return Effect("ok", view, file, text)
        case Show(target):
            bounds = _find(files.get(target.file, ""), target.function)
            return None if bounds is None else Effect(_numbered(files[target.file], bounds), target)
        case Change():
            return _change(action, view, files)


def _change(action: Change, view: View | None, files: Mapping[str, str]) -> Effect | None:
    text = files.get(view.file, "") if view else ""
    bounds = _find(text, view.function) if view else None
    if view is None or bounds is None or action.line > bounds[1] - bounds[0]:
        return None
    lines = text.split("\n")
    at = bounds[0] + action.line
    lines[at if action.insert else at - 1 : at] = [action.text]
    changed = "\n".join(lines)
    return Effect("ok", view, view.file, changed) if len(changed) <= MAX_FILE_CHARACTERS else None


def _find(text: str, function: str) -> tuple[int, int] | None:
    """Line indices [start, end) of a top-level function: its `def` line and the indented lines after it."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith(f"def {function}(")), None)
    if start is None:
        return None
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith((" ", "\t"))), len(lines))
    return start, end


def _numbered(text: str, bounds: tuple[int, int]) -> str:
    start, end = bounds
    shown = text.split("\n")[start : min(end, start + MAX_VIEW_LINES)]
    numbered = [f"{number}:{line}" for number, line in enumerate(shown, 1)]
    return "\n".join(numbered + ["..."] * (end - start > MAX_VIEW_LINES))
