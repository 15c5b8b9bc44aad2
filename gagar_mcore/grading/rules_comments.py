"""Rules on comments: noise, marks left over, code commented out, and blocks that change no code at all."""

import re
from collections import Counter
from collections.abc import Iterator

from gagar_mcore.grading.change import AddedLine, Change, FileChange
from gagar_mcore.grading.citations import patch_citation
from gagar_mcore.grading.findings import Finding
from gagar_mcore.grading.patch import Block

CODE_PER_COMMENT = 2
SAYS_NOTHING = 2

_MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_SILENCED = re.compile(r"^(noqa|type: ?ignore|pylint: ?disable|pragma: ?no cover|eslint-disable|nolint)")
_CODE = re.compile(
    r"^(def|class|if|elif|for|while|return|import|from|print)\b.*[:()=\w]$|^[\w.\[\]]+ *([+*/-]?=) *\S+$|^[\w.]+\(.*\)$"
)


def comment_findings(change: Change) -> Iterator[Finding]:
    """A comment is noise where it has at most two words, or where the patch has more of them than its code calls for."""
    fresh = [(file, new) for file in change.files for block in file.patch.blocks for new in _fresh_comments(file, block)]
    code = sum(bool(new.line.code) for _, new in change.added())
    too_many = _runs(fresh) * CODE_PER_COMMENT > code
    for file, new in fresh:
        for rule in _rules(new.line.comment or "", too_many):
            yield Finding(rule, patch_citation(file.path, new.number))
    for file in change.files:
        for block in file.patch.blocks:
            if file.code_size(block) == 0 and not _fresh_comments(file, block):
                yield Finding("no_change_in_code", patch_citation(file.path, block.new))


def _rules(comment: str, too_many: bool) -> Iterator[str]:
    if _SILENCED.match(comment):
        yield "silenced_lint"
        return
    if _MARK.search(comment):
        yield "leftover_mark"
    if _CODE.match(comment):
        yield "commented_out_code"
    if too_many or len(comment.split()) <= SAYS_NOTHING:
        yield "comment_noise"


def _fresh_comments(file: FileChange, block: Block) -> list[AddedLine]:
    """Added lines whose comment was not there before; those of one paragraph are one line: its first."""
    known = Counter(line.comment for line in file.removed_by(block))
    fresh: list[AddedLine] = []
    for new in file.added_by(block):
        if new.line.comment is None:
            continue
        if known[new.line.comment] > 0:
            known[new.line.comment] -= 1
            continue
        fresh.append(new)
    return fresh


def _runs(fresh: list[tuple[FileChange, AddedLine]]) -> int:
    """Comments, where lines of comment alone that follow each other are one."""
    runs = 0
    previous: tuple[str, int] | None = None
    for file, new in fresh:
        alone = not new.line.code
        runs += not (alone and previous == (file.path, new.number - 1))
        previous = (file.path, new.number) if alone else None
    return runs
