"""Where a judgement points: a line of the patch, a turn, a test or a check of the trajectory that is judged.

patch:FILE:LINE   a line of FILE within a hunk, counted after the patch; LINE 0 is the file as a whole
turn:N            turn N
test:ID           the test of that id
check:N           check N of the workspace, which was run on this trajectory
"""

from collections.abc import Collection, Iterable

from gagar_mcore.grading.patch import FilePatch, PatchError, parse_patch
from gagar_mcore.records.types import Trajectory

LINE_DIGITS = 9


def patch_citation(path: str, line: int = 0) -> str:
    return f"patch:{path}:{line}"


def turn_citation(index: int) -> str:
    return f"turn:{index}"


def test_citation(id: str) -> str:
    return f"test:{id}"


def check_citation(number: int) -> str:
    return f"check:{number}"


def unresolved(citations: Iterable[str], trajectory: Trajectory, checks: Collection[int] = ()) -> str | None:
    """The first citation of something that `trajectory` does not have. checks: the numbers of those that were run on it."""
    try:
        files = parse_patch(trajectory.patch)
    except PatchError:
        files = []
    return next((citation for citation in citations if not _resolves(citation, trajectory, files, checks)), None)


def _resolves(citation: str, trajectory: Trajectory, files: list[FilePatch], checks: Collection[int]) -> bool:
    kind, _, rest = citation.partition(":")
    if kind == "patch":
        path, _, line = rest.rpartition(":")
        return _is_number(line) and any(file.path == path and _shows(file, int(line)) for file in files)
    if kind == "turn":
        return _is_number(rest) and any(turn.index == int(rest) for turn in trajectory.turns)
    if kind == "check":
        return _is_number(rest) and int(rest) in checks
    return kind == "test" and trajectory.verification is not None and rest in trajectory.verification.tests


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LINE_DIGITS


def _shows(file: FilePatch, line: int) -> bool:
    return line == 0 or any(line in shown for shown in file.shown)
