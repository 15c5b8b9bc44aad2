"""Reading a unified diff as git writes it. Pure text work in one pass: the text is the policy's and is never applied to disk."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

LEFT_OUT = "left out: "

FileStatus = Literal["added", "deleted", "modified"]

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|.)", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


class PatchError(ValueError):
    """Text that is no unified diff."""


@dataclass(frozen=True, slots=True)
class Block:
    """Changed lines without a context line between them: `removed` stood at line `old`, `added` stands at line `new`, from 1."""

    old: int
    new: int
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def size(self) -> int:
        return max(len(self.removed), len(self.added))


@dataclass(slots=True)
class FilePatch:
    """Changes of one file. `shown`: the new-side line ranges of its hunks. `link`: a symbolic link is made. `mode`: so is a
    change of its permissions."""

    path: str
    status: FileStatus = "modified"
    binary: bool = False
    link: bool = False
    mode: bool = False
    blocks: list[Block] = field(default_factory=list)
    shown: list[range] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Changed lines, a replaced line counted once."""
        return sum(block.size for block in self.blocks)

    @property
    def first_line(self) -> int:
        """The first changed line, 0 where no line is shown."""
        return self.blocks[0].new if self.blocks else 0


def parse_patch(text: str) -> list[FilePatch]:
    """The files of a git diff, in its order; lines before it say what is not in it. Raises PatchError where the text is none."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            files.append(FilePatch(_path_of(line.removeprefix("diff --git "))))
        elif not files and line.startswith(LEFT_OUT):
            pass
        elif not files:
            raise PatchError("a patch begins with `diff --git`")
        elif match := _HUNK.match(line):
            at = _read_hunk(lines, at + 1, match, files[-1])
            continue
        else:
            _read_header(line, files[-1])
        at += 1
    return files


def patched(text: str, file: FilePatch) -> str | None:
    """The file after the patch; None where `text` is not what the patch was made from."""
    lines = text.split("\n")
    for block in reversed(file.blocks):
        start, end = block.old - 1, block.old - 1 + len(block.removed)
        if tuple(lines[start:end]) != block.removed:
            return None
        lines[start:end] = block.added
    return "\n".join(lines)


def _read_header(line: str, file: FilePatch) -> None:
    if line.startswith("new file mode"):
        file.status, file.link = "added", line.endswith("120000")
    elif line.startswith("deleted file mode"):
        file.status = "deleted"
    elif line.startswith("new mode"):
        file.mode = True
    elif line.startswith(("GIT binary patch", "Binary files ")):
        file.binary = True
    elif line.startswith(("+++ ", "--- ")) and not line.endswith("/dev/null"):
        file.path = _without_prefix(_unquoted(line[4:].removesuffix("\t")))


def _read_hunk(lines: list[str], at: int, match: re.Match[str], file: FilePatch) -> int:
    """Read the hunk whose lines begin at index `at`; the index behind it."""
    old, old_left, new, new_left = (int(group) if group is not None else 1 for group in match.groups())
    file.shown.append(range(new, new + new_left + 1))
    old, new = old + (old_left == 0), new + (new_left == 0)
    removed: list[str] = []
    added: list[str] = []

    def close(shift: int = 0) -> None:
        if removed or added:
            file.blocks.append(Block(old - shift - len(removed), new - shift - len(added), tuple(removed), tuple(added)))
            removed.clear()
            added.clear()

    for kind, text in _hunk_lines(lines, at, old_left, new_left):
        at += 1
        old += kind in "- "
        new += kind in "+ "
        if kind == "-":
            removed.append(text)
        elif kind == "+":
            added.append(text)
        elif kind == " ":
            close(shift=1)
    close()
    return at


def _hunk_lines(lines: list[str], at: int, old_left: int, new_left: int) -> Iterator[tuple[str, str]]:
    """(kind, text) of each line of a hunk: kind "-", "+", " ", or "\\" for the remark on a missing newline."""
    while old_left > 0 or new_left > 0 or (at < len(lines) and lines[at].startswith("\\")):
        if at == len(lines):
            raise PatchError("the patch ends within a hunk")
        kind, text = lines[at][:1] or " ", lines[at][1:]
        if kind not in "-+ \\":
            raise PatchError(f"line {at + 1}: a line of a hunk begins with a blank, + or -")
        old_left -= kind in "- "
        new_left -= kind in "+ "
        if old_left < 0 or new_left < 0:
            raise PatchError(f"line {at + 1}: a hunk is longer than its header says")
        yield kind, text
        at += 1


def _path_of(names: str) -> str:
    """The path in `a/PATH b/PATH`; git leaves out other headers for empty and binary files only, which it never renames here."""
    if names.startswith('"'):
        return _without_prefix(_unquoted(names[: len(names) // 2]))
    return _without_prefix(names[: len(names) // 2])


def _without_prefix(path: str) -> str:
    return path[2:] if path[:2] in ("a/", "b/") else path


def _unquoted(path: str) -> str:
    """Undo git's C-style quotes, which it sets around paths with unusual bytes."""
    if len(path) < 2 or not (path.startswith('"') and path.endswith('"')):
        return path
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 8)) if len(m[1]) == 3 else _LETTERS.get(m[1], m[1]), path[1:-1])
    return plain.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
