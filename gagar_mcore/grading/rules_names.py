"""Names that an added line binds and nothing uses. Python only, by tokens."""

from collections import Counter
from collections.abc import Iterator

from gagar_mcore.grading.change import AddedLine, Change, FileChange
from gagar_mcore.grading.citations import patch_citation
from gagar_mcore.grading.findings import Finding
from gagar_mcore.grading.source import enclosing

MAX_LINES = 500


def name_findings(change: Change) -> Iterator[Finding]:
    for file in change.files:
        if not (file.complete and file.path.endswith(".py")) or file.path.endswith("__init__.py"):
            continue
        everywhere = Counter(word for line in file.lines for token in line.code for word in _names(token))
        for new in file.added[:MAX_LINES]:
            if new.line.starts and _binds_in_vain(file, new, everywhere):
                yield Finding("unused_name", patch_citation(file.path, new.number))


def _binds_in_vain(file: FileChange, new: AddedLine, everywhere: Counter[str]) -> bool:
    code = new.line.code
    if code[0] in ("import", "from"):
        names = _imported(code)
        return bool(names) and all(everywhere[name] == 1 for name in names)
    if len(code) > 2 and code[1] == "=" and code[0].isidentifier() and new.text.startswith((" ", "\t")):
        return everywhere[code[0]] == 1 or _uses_nearby(file, new.number, code[0]) == 1
    return False


def _imported(code: tuple[str, ...]) -> list[str]:
    """Names that an import on one line binds, where it is plain to see."""
    tail = code[code.index("import") + 1 :] if "import" in code else ()
    parts = " ".join(tail).replace("(", "").replace(")", "").split(" , ")
    names = [part.split(" as ")[-1].split(" . ")[0].strip() for part in parts]
    return [name for name in names if name.isidentifier()]


def _uses_nearby(file: FileChange, number: int, name: str) -> int:
    """How often a name occurs in the outermost function around line `number`."""
    outer = enclosing(file.raw, number).partition(".")[0]
    if not outer:
        return -1
    start = number - 1
    while start > 0 and (not file.raw[start].strip() or file.raw[start][0] in " \t"):
        start -= 1
    end = number
    while end < len(file.raw) and (not file.raw[end].strip() or file.raw[end][0] in " \t)]}"):
        end += 1
    return sum(name == word for line in file.lines[start:end] for token in line.code for word in _names(token))


def _names(token: str) -> list[str]:
    """The identifiers in a token: itself, or those within a string, which may be a format."""
    cleaned = "".join(c if c.isalnum() or c == "_" else " " for c in token)
    return [word for word in cleaned.split() if word.isidentifier()]
