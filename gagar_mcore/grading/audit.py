"""Patch quality of two sides, judged blind: pairs of passing patches of one task, without what tells which side made them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import NormalDist, fmean, stdev

from gagar_mcore.credit import CreditParams
from gagar_mcore.credit.tiers import rank_score
from gagar_mcore.grading.agreement import places
from gagar_mcore.grading.offline import Graded
from gagar_mcore.grading.recorded import RecordedGroup
from gagar_mcore.records.types import Trajectory
from gagar_mcore.tasks.task import Task

Z = NormalDist().inv_cdf(0.975)  # of a two-sided interval of 95 %
NEW, OLD = "new", "old"  # ids within a pair; a grader that is a model does not see them


@dataclass(frozen=True, slots=True)
class Scored:
    """One pair: quality of both from 1 to 5, and 1.0 where the new one is better, 0.0 where the old one is, 0.5 for a tie."""

    old: float
    new: float
    win: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean or share with its interval of 95 %; NaN where there is too little."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pairs(old: Sequence[RecordedGroup], new: Sequence[RecordedGroup], seed: int) -> list[RecordedGroup]:
    """One passing patch of each side, drawn by `seed`, for every task that both sides have passed, as a group of two."""
    rng = Random(seed)
    before, after = _passing(old), _passing(new)
    return [_pair(task, rng.choice(before[id][1]), rng.choice(members)) for id, (task, members) in after.items() if id in before]


def scored(graded: Graded, params: CreditParams) -> Scored | None:
    """None where there is no verdict."""
    if graded.verdict is None:
        return None
    grades, place = graded.verdict.grades, places(graded.verdict, params)
    win = 0.5 if place[NEW] == place[OLD] else float(place[NEW] < place[OLD])
    return Scored(rank_score(grades[OLD], params), rank_score(grades[NEW], params), win)


def summary(found: Sequence[Scored], lost: int) -> str:
    """Mean quality of both sides, and how often the new one wins. lost: pairs without a verdict."""
    if not found and not lost:
        return "nothing to compare: no task was passed on both sides"
    lines = [f"{len(found)} pairs judged" + (f", {lost} without a verdict" if lost else "")]
    if found:
        wins, ties = sum(one.win == 1 for one in found), sum(one.win == 0.5 for one in found)
        lines += [
            f"quality, 1 to 5: old {mean_interval([one.old for one in found])}, new {mean_interval([one.new for one in found])}",
            f"win rate of new: {wilson(fmean(one.win for one in found), len(found))} ({wins} won, {ties} tied)",
        ]
    return "\n".join([*lines, "intervals are of 95 %"] if found else lines)


def wilson(share: float, count: int) -> Interval:
    """E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927. Ties count as half."""
    spread = Z**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def mean_interval(values: Sequence[float]) -> Interval:
    """By the normal distribution."""
    half = Z * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half)


def _passing(groups: Sequence[RecordedGroup]) -> Mapping[str, tuple[Task, list[Trajectory]]]:
    found: dict[str, tuple[Task, list[Trajectory]]] = {}
    for group in groups:
        passing = [t for t in group.trajectories if t.passed]
        if passing:
            found.setdefault(group.task.key, (group.task, []))[1].extend(passing)
    return found


def _pair(task: Task, old: Trajectory, new: Trajectory) -> RecordedGroup:
    """Patches alone: turns would tell which side is longer at it."""
    members = (replace(old, id=OLD, turns=[], end_reason="finished"), replace(new, id=NEW, turns=[], end_reason="finished"))
    return RecordedGroup(task.key, task, members)
