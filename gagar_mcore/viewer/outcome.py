"""How one trajectory came out, as a word and a mark: the same colours everywhere on the page."""

from gagar_mcore.records.types import Group, Trajectory
from gagar_mcore.viewer.html import Markup, element


def outcome(group: Group, trajectory: Trajectory) -> tuple[str, str]:
    """(style, words): hacks and invalid ones first, then tiers, then passed or failed."""
    if not trajectory.valid:
        return "invalid", f"invalid: {trajectory.invalid_reason or 'unknown'}"
    if group.verdict and trajectory.id in group.verdict.hacks:
        return "hack", "hack"
    if not trajectory.passed:
        return "failed", "failed" if trajectory.end_reason == "finished" else f"failed: {trajectory.end_reason}"
    tier = group.credit.tiers.get(trajectory.id)
    return (f"tier{tier}", f"passed, tier {tier}") if tier in (1, 2, 3) else ("passed", "passed")


def mark(group: Group, trajectory: Trajectory) -> Markup:
    style, words = outcome(group, trajectory)
    return element("span", title=f"{name(trajectory)}: {words}", class_=f"mark {style}")


def name(trajectory: Trajectory) -> str:
    return f"m{trajectory.member:02d}"
