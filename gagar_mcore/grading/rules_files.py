"""Rules on whole files of a patch: strays, binaries, deletions, and what steers the tests."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from gagar_mcore.grading.change import Change, FileChange
from gagar_mcore.grading.citations import patch_citation
from gagar_mcore.grading.findings import Finding
from gagar_mcore.grading.workspace import Workspace

_SCRATCH = re.compile(
    r"^(te?mp|scratch|debug|notes?|repro\w*|out(put)?|log|foo|bar|untitled|copy)\b|\.(log|orig|rej|bak|swp|tmp|pyc)$", re.I
)
_CONTROL = re.compile(r"(^|/)(conftest\.py|sitecustomize\.py|usercustomize\.py|pytest\.(py|ini)|unittest\.py|[^/]*\.pth)$")
_CHECK = re.compile(r"assert|expect|def test", re.I)
MIN_SIBLINGS = 2


def file_findings(change: Change, workspace: Workspace) -> Iterator[Finding]:
    for file in change.files:
        for rule in _rules(file, change, workspace):
            yield Finding(rule, patch_citation(file.path, file.patch.first_line))


def _rules(file: FileChange, change: Change, workspace: Workspace) -> Iterator[str]:
    if file.patch.binary or file.patch.link:
        yield "binary_or_link"
    if file.patch.mode:
        yield "changed_mode"
    if file.patch.status == "added":
        if _CONTROL.search(file.path):
            yield "test_control"
        if _is_stray(file, change, workspace):
            yield "stray_file"
    elif file.is_test and any(_CHECK.search(text) for block in file.patch.blocks for text in block.removed):
        yield "weakened_test"
    elif file.patch.status == "deleted":
        yield "deleted_file"


def _is_stray(file: FileChange, change: Change, workspace: Workspace) -> bool:
    """A new file without a place: neither among files of its kind, nor used by code that the patch adds elsewhere."""
    path = PurePosixPath(file.path)
    if _SCRATCH.search(path.name):
        return True
    siblings = [PurePosixPath(name) for name in workspace.files]
    alike = sum(s.parent == path.parent and s.suffix == path.suffix for s in siblings)
    if alike >= MIN_SIBLINGS and path.parent.name:
        return False
    word = re.compile(rf"\b{re.escape(path.stem)}\b")
    return not any(word.search(" ".join(new.line.code)) for other, new in change.added() if other is not file)
