"""The groups on the page: folded one by one, bounded in size one by one and together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gagar_mcore.records.types import Group
from gagar_mcore.tracking.text import clip
from gagar_mcore.viewer.credit import credit_table, credit_words
from gagar_mcore.viewer.html import Markup, element
from gagar_mcore.viewer.load import GroupRecord, RunReader
from gagar_mcore.viewer.outcome import mark
from gagar_mcore.viewer.select import Selection
from gagar_mcore.viewer.trajectories import Limits, patches, session

PAGE_BYTES = 4_500_000
GROUP_BYTES = 300_000
LIMITS = (
    Limits(characters=4000, line=400, turns=40, patch_lines=300, tests=60),
    Limits(characters=1000, line=200, turns=12, patch_lines=60, tests=20),
    Limits(characters=200, line=120, turns=4, patch_lines=20, tests=5),
)


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    step: int
    markup: Markup
    shortened: bool


def draw_groups(reader: RunReader, selection: Selection) -> list[DrawnGroup]:
    """The selected groups in the order of preference, until the page is full; the first is unfolded."""
    drawn: list[DrawnGroup] = []
    room = PAGE_BYTES
    for group in selection.groups:
        found = draw_group(reader.with_trajectories(group), unfolded=not drawn)
        if found is None:
            continue
        room -= len(found.markup.encode())
        if room < 0:
            break
        drawn.append(found)
    return drawn


def draw_group(record: GroupRecord, unfolded: bool = False) -> DrawnGroup | None:
    """The group with as much of its texts as fits into GROUP_BYTES; None where not even the least does."""
    for limits in LIMITS:
        markup = _group(record, limits, unfolded)
        if len(markup.encode()) <= GROUP_BYTES:
            return DrawnGroup(record.group.step, markup, shortened=limits != LIMITS[0])
    return None


def by_step(groups: Sequence[DrawnGroup]) -> Markup:
    """Newest step first."""
    ordered = sorted(groups, key=lambda g: -g.step)
    sections = [
        element("section", element("h3", f"Step {step}"), *[g.markup for g in of_step], class_="step")
        for step, of_step in groupby(ordered, key=lambda g: g.step)
    ]
    return element("div", *sections)


def _group(record: GroupRecord, limits: Limits, unfolded: bool) -> Markup:
    group, trajectories = record.group, record.trajectories
    missing = len(group.trajectory_ids) - len(trajectories)
    body = [
        element("p", f"{missing} of {len(group.trajectory_ids)} trajectories could not be read", class_="cut")
        if missing
        else None,
        element("pre", clip(record.instruction, limits.characters), class_="instruction") if record.instruction else None,
        element("h4", "Verdict and credit"),
        element("p", f"{_graded_by(group)}; method {group.credit.method}, lambda {group.credit.lam:.4f}", class_="facts"),
        credit_table(group, trajectories, limits.line),
        element("h4", "Patches"),
        patches(group, trajectories, limits),
        element("h4", "Trajectories"),
        *[session(group, trajectory, limits) for trajectory in trajectories],
    ]
    return element("details", _summary(record), element("div", *body, class_="body"), class_="group", open=unfolded)


def _graded_by(group: Group) -> str:
    if group.verdict is None:
        return "No verdict"
    return f"Graded by {clip(group.verdict.grader, 80)} in {group.verdict.seconds:.1f} s"


def _summary(record: GroupRecord) -> Markup:
    group, trajectories = record.group, record.trajectories
    hacks = set(group.verdict.hacks) if group.verdict else set()
    valid = [t for t in trajectories if t.valid]
    passing = [t for t in valid if t.passed and t.id not in hacks]
    return element(
        "summary",
        element("span", clip(group.task_id, 100), class_="task"),
        element("span", *[mark(group, t) for t in trajectories], class_="marks"),
        element("span", f"{len(passing)} of {len(valid)} pass", class_="facts"),
        *[element("span", words, class_=style) for style, words in credit_words(group.credit)],
    )
