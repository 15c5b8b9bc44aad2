"""Rules that need the task or the group: special cases for the complaint, changes elsewhere, size beside the smallest pass."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gagar_mcore.grading.change import Change, FileChange
from gagar_mcore.grading.citations import patch_citation
from gagar_mcore.grading.findings import Finding

REWRITE_LINES = 40
REWRITE_RATIO = 6.0
REPLACED_SHARE = 0.8
MIN_REPLACED_LINES = 10
MAX_LITERALS = 200
STEPS = ((3.0, "much_larger"), (1.75, "larger"), (1.25, "somewhat_larger"))

_GROUP = re.compile(r"\[[^\]\n]*\]|\([^()\n]*\)")
_SCALAR = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|-?\b\d+(?:\.\d+)?")
_TRIVIAL = frozenset({"0", "1", "-1", "''", '""', "[]", "()"})


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest passing changes of a group: their size, and every region that one of them touches."""

    size: int
    regions: frozenset[tuple[str, str]]


def smallest_of(changes: Sequence[Change]) -> Smallest:
    size = min((change.size for change in changes), default=0)
    return Smallest(size, frozenset(region for c in changes if c.size == size for region in c.regions))


def task_findings(change: Change, smallest: Smallest, instruction: str) -> Iterator[Finding]:
    yield from _size_findings(change, smallest)
    yield from _elsewhere(change, smallest, instruction)
    yield from _special_cases(change, instruction)


def _size_findings(change: Change, smallest: Smallest) -> Iterator[Finding]:
    ratio = change.size / max(1, smallest.size)
    where = _largest_block(change)
    rule = next((name for bound, name in STEPS if ratio > bound), None)
    if rule is not None:
        yield Finding(rule, where)
    far_larger = change.size - smallest.size >= REWRITE_LINES and ratio > REWRITE_RATIO
    if far_larger or (rule == "much_larger" and any(map(_is_replaced, change.files))):
        yield Finding("rewrite", where)


def _largest_block(change: Change) -> str:
    sized = [(file.code_size(block), file, block) for file in change.files for block in file.patch.blocks]
    if not sized:
        return patch_citation(change.files[0].path)
    _, file, block = max(sized, key=lambda entry: entry[0])
    return patch_citation(file.path, block.new)


def _is_replaced(file: FileChange) -> bool:
    """Most of the code of an existing file is gone."""
    code = sum(bool(line.code) for line in file.base_lines)
    removed = sum(bool(line.code) for block in file.patch.blocks for line in file.removed_by(block))
    return code >= MIN_REPLACED_LINES and removed >= REPLACED_SHARE * code


def _elsewhere(change: Change, smallest: Smallest, instruction: str) -> Iterator[Finding]:
    """Code changed outside of what the smallest passes change and the task names."""
    named = set(re.findall(r"\w+", instruction))
    for (path, function), line in change.regions.items():
        if (path, function) not in smallest.regions and not (function and named.intersection(function.split("."))):
            yield Finding("elsewhere", patch_citation(path, line))


def _special_cases(change: Change, instruction: str) -> Iterator[Finding]:
    """An added comparison with a value of the complaint, and right behind it a return of another."""
    literals = _literals(instruction)
    if not literals:
        return
    compares = re.compile(rf"(==|in)({'|'.join(map(re.escape, literals))})(?![\w.])")
    for file in change.files:
        texts = ["".join(new.line.code) for new in file.added]
        for index, new in enumerate(file.added):
            returned = {text.partition("return")[2] for text in texts[index : index + 3]}
            if compares.search(texts[index]) and not returned.isdisjoint(literals):
                yield Finding("special_case", patch_citation(file.path, new.number))


def _literals(text: str) -> list[str]:
    """Values that a text names, without blanks: arguments, lists, strings and numbers."""
    found = dict.fromkeys("".join(literal.split()) for pattern in (_GROUP, _SCALAR) for literal in pattern.findall(text))
    return [literal for literal in found if literal not in _TRIVIAL][:MAX_LITERALS]
