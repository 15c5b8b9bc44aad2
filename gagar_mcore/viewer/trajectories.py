"""The trajectories of a group on the page: patches side by side, turns, and test results."""

from collections.abc import Sequence
from dataclasses import dataclass

from gagar_mcore.records.types import Group, Trajectory, Turn, Verification
from gagar_mcore.tracking.text import clip
from gagar_mcore.viewer.diff import draw_diff
from gagar_mcore.viewer.html import Markup, element, join
from gagar_mcore.viewer.outcome import mark, name, outcome


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a group is shown: characters of a text and of a patch line, turns of a trajectory, lines of a patch, tests."""

    characters: int
    line: int
    turns: int
    patch_lines: int
    tests: int


def patches(group: Group, trajectories: Sequence[Trajectory], limits: Limits) -> Markup:
    """A column for each different patch, those with the highest advantage first; equal patches share one."""
    advantage = group.credit.advantages
    columns: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: -advantage.get(t.id, float("-inf"))):
        columns.setdefault(trajectory.patch, []).append(trajectory)
    drawn = [
        element(
            "div",
            element("h5", *[_member(group, t) for t in members]),
            draw_diff(patch, limits.patch_lines, limits.line),
            class_="patch",
        )
        for patch, members in columns.items()
    ]
    return element("div", *drawn, class_="patches")


def _member(group: Group, trajectory: Trajectory) -> Markup:
    return element("span", mark(group, trajectory), name(trajectory), class_="member")


def session(group: Group, trajectory: Trajectory, limits: Limits) -> Markup:
    """One trajectory, folded: its turns and its tests."""
    _, words = outcome(group, trajectory)
    segments = f" in {len(trajectory.segments)} segments" if len(trajectory.segments) > 1 else ""
    tokens = f"{trajectory.generated_tokens:,} tokens{segments}"
    facts = f"{words} · {len(trajectory.turns)} turns · {tokens} · {trajectory.seconds:.1f} s"
    summary = element("summary", _member(group, trajectory), element("span", facts, class_="facts"))
    return element(
        "details", summary, _turns(trajectory.turns, limits), _tests(trajectory.verification, limits), class_="session"
    )


def _turns(turns: Sequence[Turn], limits: Limits) -> Markup:
    head = limits.turns // 2
    if len(turns) <= limits.turns:
        return element("ol", *[_turn(turn, limits) for turn in turns], class_="turns")
    gap = element("li", f"{len(turns) - 2 * head} turns are left out", class_="cut")
    shown = [_turn(turn, limits) for turn in (*turns[:head], *turns[-head:])]
    return element("ol", *shown[:head], gap, *shown[head:], class_="turns")


def _turn(turn: Turn, limits: Limits) -> Markup:
    notes = [] if turn.ok else ["refused"]
    notes += [f"ended by {turn.finish_reason}"] if turn.finish_reason != "stop" else []
    head = element("span", str(turn.index), class_="index")
    tool = element("span", clip(turn.tool, 40) or "no tool", class_="tool")
    said = element("pre", clip(turn.action, limits.characters), class_="action")
    seen = element("pre", clip(turn.observation, limits.characters), class_="observation") if turn.observation else None
    flags = [element("span", note, class_="flag") for note in notes]
    return element("li", element("p", head, tool, *flags), said, seen, class_=None if turn.ok else "refused")


def _tests(verification: Verification | None, limits: Limits) -> Markup:
    if verification is None:
        return element("p", "not tested", class_="empty")
    if verification.infrastructure_error is not None:
        return element("p", f"not tested: {clip(verification.infrastructure_error, limits.characters)}", class_="cut")
    tests = sorted(verification.tests.items(), key=lambda item: (item[1] == "passed", item[0]))
    passed = sum(status == "passed" for status in verification.tests.values())
    rows = [
        element("li", element("span", status, class_=f"status {status}"), clip(test, limits.line))
        for test, status in tests[: limits.tests]
    ]
    if len(tests) > limits.tests:
        rows.append(element("li", f"{len(tests) - limits.tests:,} more tests are left out", class_="cut"))
    output = (
        element("pre", clip(verification.output, limits.characters), class_="observation")
        if verification.output.strip()
        else None
    )
    title = element("h5", f"{passed} of {len(tests)} tests passed in {verification.seconds:.1f} s")
    doubts = [element("p", f"suspicious: {clip(reason, limits.line)}", class_="cut") for reason in verification.suspicion]
    return join(title, *doubts, element("ul", *rows, class_="tests"), output)
