"""A patch as coloured lines, bounded in lines and in line length, with what is left out stated."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from gagar_mcore.tracking.text import clip
from gagar_mcore.viewer.html import Markup, element

_KINDS = {"+": "added", "-": "removed", " ": "same", "": "same", "\\": "hunk"}


def draw_diff(patch: str, max_lines: int, max_line: int) -> Markup:
    """A unified diff; anything else is shown as plain lines."""
    if not patch.strip():
        return element("p", "no change", class_="empty")
    total = patch.count("\n") + (not patch.endswith("\n"))
    lines = [clip(line, max_line) for line in patch.split("\n", max_lines)[: min(max_lines, total)]]
    blocks = [
        element("span", "\n".join(line for _, line in block), class_=kind)
        for kind, block in groupby(with_kinds(lines), key=lambda pair: pair[0])
    ]
    left_out = element("p", f"{total - max_lines:,} more lines are left out", class_="cut") if total > max_lines else None
    return element("div", element("pre", *blocks, class_="diff"), left_out)


def with_kinds(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each line with its class. Headers stand between hunks only: a changed line that looks like one stays a change."""
    in_hunk = False
    for line in lines:
        if line.startswith("diff "):
            in_hunk = False
        elif line.startswith("@@"):
            in_hunk = True
            yield "hunk", line
            continue
        yield (_KINDS.get(line[:1], "same") if in_hunk else "file"), line
