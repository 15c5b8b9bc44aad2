"""Names that an added line binds and nothing uses. Python only, by tokens."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gagar_mcore.grading.change import AddedLine, Change, FileChange
from gagar_mcore.grading.citations import patch_citation
from gagar_mcore.grading.findings import Finding

_NAME = re.compile(r"[^\W\d]\w*")


def name_findings(change: Change) -> Iterator[Finding]:
    for file in change.files:
        if not (file.complete and file.path.endswith(".py")) or file.path.endswith("__init__.py"):
            continue
        uses = _Uses(file)
        for new in file.added:
            if new.line.starts and any(uses.near(new.number)[name] == 1 for name in _bound(new)):
                yield Finding("unused_name", patch_citation(file.path, new.number))


def _bound(new: AddedLine) -> list[str]:
    """Names that a line binds for its own function or file, where that is plain to see: imports, simple local assignments."""
    code = new.line.code
    if code[0] in ("import", "from") and "import" in code:
        parts = " ".join(code[code.index("import") + 1 :]).strip("( )").split(" , ")
        return [part.split(" as ")[-1].split(" . ")[0] for part in parts]
    local = len(code) > 2 and code[1] == "=" and code[0].isidentifier() and new.text.startswith((" ", "\t"))
    return [code[0]] if local else []


@dataclass(slots=True)
class _Uses:
    """How often each name occurs in a top-level block of a file; at the top level itself, in the whole file."""

    file: FileChange
    counts: dict[int, Counter[str]] = field(default_factory=dict)  # by line index, shared by the lines of a block

    def near(self, number: int) -> Counter[str]:
        if number - 1 not in self.counts:
            block = self._block_of(number - 1)
            names = Counter(name for i in block for token in self.file.lines[i].code for name in _NAME.findall(token))
            for index in block:
                self.counts.setdefault(index, names)
        return self.counts[number - 1]

    def _block_of(self, index: int) -> range:
        raw = self.file.raw
        if raw[index][:1] not in (" ", "\t"):
            return range(len(raw))
        start, end = index, index + 1
        while start > 0 and raw[start][:1] in ("", " ", "\t"):
            start -= 1
        while end < len(raw) and raw[end][:1] in ("", " ", "\t", ")", "]", "}"):
            end += 1
        return range(start, end)
