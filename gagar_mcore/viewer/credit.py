"""The verdict and the credit of a group as one table: a row a trajectory, from reward to advantage."""

from collections.abc import Sequence

from gagar_mcore.records.types import Credit, Grade, Group, Trajectory
from gagar_mcore.tracking.text import clip
from gagar_mcore.viewer.html import Markup, element
from gagar_mcore.viewer.outcome import mark, name, outcome

CRITERIA = ("approach", "precision", "minimality", "side_effects", "consistency")
FLAGS = ("rewrite", "workaround", "severe_process", "regression")
HEAD = ("", "reward", "outcome", "tests", "grades", "rank", "flags and citations", "tier", "factor", "advantage")
MAX_CITATIONS = 12
_BAR, _BAR_HEIGHT = 120.0, 10.0


def credit_table(group: Group, trajectories: Sequence[Trajectory], max_text: int) -> Markup:
    head = element("thead", element("tr", *[element("th", title) for title in HEAD]))
    rows = [_row(group, trajectory, max_text) for trajectory in trajectories]
    return element("div", element("table", head, element("tbody", *rows), class_="credit"), class_="scroll")


def credit_words(credit: Credit) -> list[tuple[str, str]]:
    """(style, words) of what became of a group as a whole."""
    words = [("badge", f"λ {credit.lam:.3f}")] if credit.kept else []
    words += [("badge warn", "capped")] if credit.capped else []
    words += [("badge warn", f"dropped: {(credit.dropped or 'unknown').replace('_', ' ')}")] if not credit.kept else []
    words += [("badge warn", f"verdict not used: {clip(credit.fallback, 80)}")] if credit.fallback is not None else []
    return words


def _row(group: Group, trajectory: Trajectory, max_text: int) -> Markup:
    credit, grade = group.credit, group.verdict.grades.get(trajectory.id) if group.verdict else None
    style, words = outcome(group, trajectory)
    tests = trajectory.verification.tests.values() if trajectory.verification else ()
    cells = [
        element("td", mark(group, trajectory), name(trajectory), class_="member"),
        element("td", _reward(credit, trajectory)),
        element("td", words, class_=f"word {style}"),
        element("td", f"{sum(t == 'passed' for t in tests)}/{len(tests)}" if tests else ""),
        element("td", _grades(grade) if grade else ""),
        element("td", "" if grade is None or grade.rank is None else str(grade.rank)),
        element("td", *_findings(grade, max_text) if grade else [], class_="findings"),
        element("td", str(credit.tiers.get(trajectory.id, ""))),
        element("td", f"{credit.factors[trajectory.id]:.3g}" if trajectory.id in credit.factors else ""),
        element("td", _advantage(credit, trajectory.id), class_="advantage"),
    ]
    return element("tr", *cells)


def _reward(credit: Credit, trajectory: Trajectory) -> str:
    penalty = credit.penalties.get(trajectory.id)
    return f"{trajectory.reward:g}" if penalty is None else f"{trajectory.reward:g} - {penalty:.3g} for length"


def _grades(grade: Grade) -> Markup:
    """Five small bars, one a criterion, with the numbers as a tooltip."""
    scores = [(criterion.replace("_", " "), getattr(grade, criterion)) for criterion in CRITERIA]
    bars = [
        element("rect", x=9 * i, y=20 - 4 * score, width=7, height=4 * score, class_=f"score{score}")
        for i, (_, score) in enumerate(scores)
    ]
    title = element("title", "\n".join(f"{criterion} {score}" for criterion, score in scores))
    drawing = element("svg", title, *bars, viewBox="0 0 45 20", class_="grades")
    return element("span", drawing, " ".join(str(score) for _, score in scores))


def _findings(grade: Grade, max_text: int) -> list[Markup]:
    flags = [element("span", flag.replace("_", " "), class_="flag") for flag in FLAGS if getattr(grade, flag)]
    citations = [element("code", clip(citation, max_text)) for citation in grade.citations[:MAX_CITATIONS]]
    more = len(grade.citations) - MAX_CITATIONS
    return [*flags, *citations, *([element("span", f"and {more} more", class_="cut")] if more > 0 else [])]


def _advantage(credit: Credit, trajectory_id: str) -> Markup | str:
    """A bar to the right for positive, to the left for negative, on the scale of the group's largest."""
    if trajectory_id not in credit.advantages:
        return ""
    value = credit.advantages[trajectory_id]
    largest = max(abs(a) for a in credit.advantages.values()) or 1.0
    length = round(abs(value) / largest * _BAR / 2, 1)
    bar = element(
        "rect",
        x=round(_BAR / 2 - (length if value < 0 else 0), 1),
        y=1,
        width=length,
        height=_BAR_HEIGHT - 2,
        class_="up" if value > 0 else "down",
    )
    axis = element("line", x1=_BAR / 2, x2=_BAR / 2, y1=0, y2=_BAR_HEIGHT)
    return element("span", element("svg", bar, axis, viewBox=f"0 0 {_BAR:g} {_BAR_HEIGHT:g}", class_="bar"), f"{value:+.3f}")
