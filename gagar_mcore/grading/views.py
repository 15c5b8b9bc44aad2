"""What the tools of a grader show. Words of ours stand outside the fence; whatever a candidate may have written, inside."""

import difflib
import json
from collections.abc import Iterator, Sequence

from gagar_mcore.grading.desk import Desk
from gagar_mcore.grading.fence import Fence
from gagar_mcore.grading.patch import FilePatch, PatchError, parse_patch
from gagar_mcore.grading.roster import ToolError
from gagar_mcore.grading.summary import summarize
from gagar_mcore.grading.text import bounded
from gagar_mcore.grading.workspace import plain_turn, results_of
from gagar_mcore.records.types import Trajectory

OVERVIEW_CHARACTERS = 24_000
LEAST_SHARE = 600
MAX_HITS = 40
HIT_CHARACTERS = 240
DIFF_LINES = 1_500  # of one file; the time that comparing takes grows faster than they do
DIFFERENCE_LINES = 6_000  # of all files


def overview(desk: Desk, fence: Fence) -> str:
    """The task, every candidate in short, and what can be done."""
    share = max(LEAST_SHARE, OVERVIEW_CHARACTERS // max(1, len(desk.roster.members)))
    able = f"at most {desk.most_checks} checks can be run" if desk.checks else "no checks can be run"
    ranked = ", ".join(desk.roster.passing) or "none"
    parts = [
        f"{len(desk.roster.members)} candidates; passing, to be graded: {ranked}",
        f"repository: {len(desk.workspace.files)} files; {able}",
        fence.wrap("the task", desk.workspace.instruction),
    ]
    for name, trajectory in desk.roster.members.items():
        shown = f"{_files_text(trajectory)}\n{summarize(trajectory)}"
        parts += [_heading(name, trajectory), fence.wrap(f"files changed, and turns of {name} in short", shown, share)]
    return "\n".join(parts)


def turns(desk: Desk, fence: Fence, name: str, first: int, count: int) -> str:
    trajectory = desk.roster.find(name)
    chosen = trajectory.turns[first : first + count]
    if not chosen:
        raise ToolError(f"{name} has {len(trajectory.turns)} turns, counted from 0")
    share = OVERVIEW_CHARACTERS // len(chosen)
    heading = f"turns {first} to {first + len(chosen) - 1} of {name}, which has {len(trajectory.turns)}"
    shown = [fence.wrap(f"turn {t.index} of {name}", json.dumps(plain_turn(t), indent=1), share) for t in chosen]
    return "\n".join([heading, *shown])


def patch(desk: Desk, fence: Fence, name: str, first: int, count: int) -> str:
    """The patch with the line numbers that citations use."""
    numbered = list(_numbered(desk.roster.find(name).patch))
    return _window(fence, f"the patch of {name}", numbered, first, count)


def tests(desk: Desk, fence: Fence, name: str) -> str:
    return fence.wrap(f"test results of {name}", results_of(desk.roster.find(name)))


def file(desk: Desk, fence: Fence, path: str, name: str, first: int, count: int) -> str:
    """`name` "": the base commit."""
    text = desk.text(desk.roster.find(name) if name else None, path)
    if text is None:
        raise ToolError("there is no such file, or its text is not kept")
    lines = [f"{number:5} {line}" for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1)]
    return _window(fence, f"a file as {name} leaves it" if name else "a file of the base commit", lines, first, count)


def difference(desk: Desk, fence: Fence, one: str, other: str) -> str:
    """How the files that two candidates leave behind differ."""
    left, right = desk.roster.find(one), desk.roster.find(other)
    shown: list[str] = []
    room = DIFFERENCE_LINES
    for path in sorted({*desk.after(left), *desk.after(right)}):
        before, after = (_lines(desk.text(trajectory, path)) for trajectory in (left, right))
        if before == after:
            continue
        size = max(len(before), len(after))
        fits = size <= min(DIFF_LINES, room)
        room -= size if fits else 0
        shown += difflib.unified_diff(before, after, path, path, lineterm="") if fits else [f"{path}: differs, not compared"]
    return fence.wrap(f"from {one} (-) to {other} (+)", "\n".join(shown) or "both leave the same files behind")


def search(desk: Desk, fence: Fence, pattern: str, where: str) -> str:
    """Lines that hold `pattern`, whatever its case, by whose text it is."""
    shown: list[str] = []
    left = MAX_HITS
    for label, texts in _searched(desk, where):
        hits = [hit for place, text in texts for hit in _hits(pattern, place, text, left)][:left]
        left -= len(hits)
        if hits:
            shown.append(fence.wrap(label, "\n".join(hits)))
        if left == 0:
            shown.append(f"only the first {MAX_HITS} lines are shown")
            break
    return "\n".join(shown) or "nothing found"


def _heading(name: str, trajectory: Trajectory) -> str:
    files = _files_of(trajectory)
    results = trajectory.verification.tests if trajectory.verification else {}
    passed = sum(status == "passed" for status in results.values())
    removed = sum(len(block.removed) for f in files for block in f.blocks)
    added = sum(len(block.added) for f in files for block in f.blocks)
    outcome = "passing" if trajectory.passed else "failing"
    return (
        f"candidate {name}: {outcome}, {passed} of {len(results)} tests passed, {len(trajectory.turns)} turns, "
        f"ended {trajectory.end_reason}, {len(files)} files changed, +{added} -{removed} lines"
    )


def _files_of(trajectory: Trajectory) -> list[FilePatch]:
    try:
        return parse_patch(trajectory.patch)
    except PatchError:
        return []


def _files_text(trajectory: Trajectory) -> str:
    return "\n".join(f"{f.status} {f.path}" for f in _files_of(trajectory)) or "no file changed, or the patch cannot be read"


def _numbered(text: str) -> Iterator[str]:
    """Lines of a patch: removed and added ones, each with the number that it has in the file after the patch."""
    try:
        files = parse_patch(text)
    except PatchError:
        yield from (f"      {line}" for line in text.split("\n"))
        return
    for changed in files:
        yield f"{changed.status} {changed.path}" + (", binary" if changed.binary else "") + (", a link" if changed.link else "")
        for block in changed.blocks:
            yield from (f"{block.new:5} - {line}" for line in block.removed)
            yield from (f"{block.new + index:5} + {line}" for index, line in enumerate(block.added))


def _window(fence: Fence, label: str, lines: Sequence[str], first: int, count: int) -> str:
    """Lines `first` to `first + count - 1`, counted from 1."""
    chosen = lines[first - 1 : first - 1 + count]
    if not chosen:
        raise ToolError(f"there are {len(lines)} lines")
    return fence.wrap(f"lines {first} to {first + len(chosen) - 1} of {len(lines)}, {label}", "\n".join(chosen))


def _lines(text: str | None) -> list[str]:
    return (text or "").split("\n")


def _searched(desk: Desk, where: str) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    """(label, (place, text)...) of each source, one after the other."""
    if where == "repository":
        yield "repository at the base commit", ((path, desk.workspace.base_text(path) or "") for path in desk.workspace.files)
        return
    for name, trajectory in desk.roster.members.items():
        if where == "patches":
            yield f"patch of {name}", iter([("", trajectory.patch)])
        elif where == "tests":
            yield f"test results of {name}", iter([("", results_of(trajectory))])
        else:
            yield f"turns of {name}", ((f"turn {t.index}", f"{t.action}\n{t.observation}") for t in trajectory.turns)


def _hits(pattern: str, place: str, text: str, most: int) -> Iterator[str]:
    wanted = pattern.casefold()
    found = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if found < most and wanted in line.casefold():
            found += 1
            yield f"{place}:{number}: {bounded(line, HIT_CHARACTERS)}"
