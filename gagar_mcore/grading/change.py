"""A patch read against the repository that it changes: what each rule of the static grader looks at."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gagar_mcore.grading.patch import Block, FilePatch, PatchError, parse_patch, patched
from gagar_mcore.grading.source import Line, enclosing, read_lines
from gagar_mcore.grading.workspace import Workspace

MAX_PATCH_CHARACTERS = 1 << 17
MAX_FILES = 100
MAX_REGIONS = 200
LONG_LINE = 120

_TEST = re.compile(r"(^|/)(tests?|testing|__tests__|spec)/|(^|/)(test_[^/]*|[^/]*_test|[^/]*[.-](test|spec))\.\w+$")


@dataclass(frozen=True, slots=True)
class AddedLine:
    """Line `number` of the file after the patch: its raw text, and as code and comment."""

    number: int
    text: str
    line: Line


@dataclass(frozen=True)
class FileChange:
    """One file of a patch. `base`: its text before, "" for a new file. `after`: its text after; where the base is not known,
    the added lines alone."""

    patch: FilePatch
    base: str
    after: str
    complete: bool

    @property
    def path(self) -> str:
        return self.patch.path

    @property
    def is_test(self) -> bool:
        return _TEST.search(self.path) is not None

    @cached_property
    def raw(self) -> list[str]:
        return self.after.split("\n")

    @cached_property
    def lines(self) -> list[Line]:
        """The lines of `after`."""
        return read_lines(self.after, self.path)

    @cached_property
    def base_lines(self) -> list[Line]:
        return read_lines(self.base, self.path)

    @cached_property
    def added(self) -> list[AddedLine]:
        return [line for block in self.patch.blocks for line in self.added_by(block)]

    def added_by(self, block: Block) -> list[AddedLine]:
        if not self.complete:
            lines = read_lines("\n".join(block.added), self.path) if block.added else []
        else:
            lines = self.lines[block.new - 1 : block.new - 1 + len(block.added)]
        return [AddedLine(block.new + i, text, line) for i, (text, line) in enumerate(zip(block.added, lines, strict=True))]

    def removed_by(self, block: Block) -> list[Line]:
        if not self.complete:
            return read_lines("\n".join(block.removed), self.path) if block.removed else []
        return self.base_lines[block.old - 1 : block.old - 1 + len(block.removed)]

    def code_size(self, block: Block) -> int:
        """Lines of code that differ between the two sides of a block, a replaced one counted once, a long one several times."""
        removed = Counter(line.code for line in self.removed_by(block) if line.code)
        added = Counter(new.line.code for new in self.added_by(block) if new.line.code)
        return max(_lines_of_code(removed - added), _lines_of_code(added - removed))

    @cached_property
    def size(self) -> int:
        """Changed lines of code; a change without lines (binary file, empty file, permissions) counts as one."""
        return sum(map(self.code_size, self.patch.blocks)) if self.patch.blocks else 1

    @cached_property
    def regions(self) -> dict[tuple[str, str], int]:
        """(path, enclosing function) of the changed code, with the first line of each."""
        found: dict[tuple[str, str], int] = {}
        for block in [b for b in self.patch.blocks if self.code_size(b)][:MAX_REGIONS]:
            where = enclosing(self.raw, block.new) if self.complete else ""
            found.setdefault((self.path, where), block.new)
        return found


@dataclass(frozen=True)
class Change:
    """All that one trajectory changes. Additions to tests are welcome and count for no size."""

    files: tuple[FileChange, ...]

    @cached_property
    def size(self) -> int:
        return sum(file.size for file in self.files if not file.is_test)

    @cached_property
    def regions(self) -> dict[tuple[str, str], int]:
        return {region: line for file in self.files if not file.is_test for region, line in file.regions.items()}

    def added(self) -> Iterator[tuple[FileChange, AddedLine]]:
        for file in self.files:
            for line in file.added:
                yield file, line


def read_change(patch: str, workspace: Workspace) -> Change:
    """Raises PatchError where `patch` is no patch, or too large to be read."""
    if len(patch) > MAX_PATCH_CHARACTERS:
        raise PatchError(f"more than {MAX_PATCH_CHARACTERS} characters")
    files = parse_patch(patch)
    if not files or len(files) > MAX_FILES:
        raise PatchError(f"{len(files)} files")
    return Change(tuple(_read_file(file, workspace) for file in files))


def _lines_of_code(codes: Counter[tuple[str, ...]]) -> int:
    return sum(count * (1 + sum(map(len, code)) // LONG_LINE) for code, count in codes.items())


def _read_file(file: FilePatch, workspace: Workspace) -> FileChange:
    base = "" if file.status == "added" else workspace.base_text(file.path)
    after = patched(base, file) if base is not None else None
    if base is None or after is None:
        return FileChange(file, "", "\n".join(text for block in file.blocks for text in block.added), complete=False)
    return FileChange(file, base, after, complete=True)
