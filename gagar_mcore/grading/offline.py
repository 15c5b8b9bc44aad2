"""Recorded groups, graded again: by any grader, several times over, with what the verdicts come to."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from gagar_mcore.credit import CreditParams, compute_credit
from gagar_mcore.grading.agentic import AgenticGrader
from gagar_mcore.grading.agreement import agreement
from gagar_mcore.grading.protocol import fallback_reason
from gagar_mcore.grading.recorded import RecordedGroup
from gagar_mcore.grading.service import GradingService
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.types import Verdict


@dataclass(frozen=True, slots=True)
class Graded:
    """One verdict on a recorded group, or why there is none."""

    group: RecordedGroup
    repeat: int
    verdict: Verdict | None
    fallback: str | None
    seconds: float

    def plain(self, params: CreditParams) -> dict[str, Any]:
        """With the tiers, factors and advantages that come of it."""
        credit = to_plain(compute_credit(self.group.trajectories, self.verdict, params, self.fallback))
        kept = ("kept", "dropped", "tiers", "factors", "lam", "advantages")
        return {
            "group": self.group.id,
            "repeat": self.repeat,
            "verdict": to_plain(self.verdict) if self.verdict else None,
            "fallback": self.fallback,
            "seconds": round(self.seconds, 3),
            **{name: credit[name] for name in kept},
        }


@dataclass(frozen=True, slots=True)
class OfflineGrading:
    """Grades each group `repeat` times, `concurrent` groups at once, in workspaces below `folder`. `shuffle`: names and order of
    the candidates are drawn anew for each time; else they are the same each time, and differences are the model's own."""

    service: GradingService
    folder: Path
    repeat: int
    shuffle: bool
    concurrent: int

    async def grade_all(self, groups: Iterable[RecordedGroup], done: Callable[[Graded], None]) -> list[list[Graded]]:
        """By group, in order; each verdict is told to `done` as it comes. Groups in which nothing passed are left out."""
        chosen = [group for group in groups if any(t.passed for t in group.trajectories)]
        slots = asyncio.Semaphore(self.concurrent)  # a wait for the service's own would count against the deadline

        async def one(group: RecordedGroup, index: int) -> list[Graded]:
            async with slots:
                return [await self._once(group, index, repeat, done) for repeat in range(self.repeat)]

        return list(await asyncio.gather(*(one(group, index) for index, group in enumerate(chosen))))

    async def _once(self, group: RecordedGroup, index: int, repeat: int, done: Callable[[Graded], None]) -> Graded:
        rng = SystemRandom() if self.shuffle else Random(index)
        members = list(group.trajectories)
        if self.shuffle:
            rng.shuffle(members)
        grader = self.service.grader
        if isinstance(grader, AgenticGrader):
            grader = replace(grader, rng=lambda: rng)
        path = self.folder / f"{index:06d}-{repeat:03d}"
        service = replace(self.service, grader=grader)
        graded = Graded(group, repeat, *await service.grade(path, group.id, group.task, members))
        done(graded)
        return graded


def summary(graded: list[list[Graded]], params: CreditParams) -> str:
    """Counts, and agreement where groups were graded more than once."""
    every = [one for repeats in graded for one in repeats]
    reasons = Counter(fallback_reason(one.fallback) for one in every if one.fallback is not None)
    usable = [[one.verdict for one in repeats if one.verdict is not None] for repeats in graded]
    lines = [
        f"{len(graded)} groups, {sum(map(len, usable))} verdicts, {sum(len(v.hacks) for some in usable for v in some)} hacks"
    ]
    if reasons:
        lines.append("fallbacks: " + ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())))
    found = agreement(usable, params)
    if found.pairs:
        tau = "undefined (all tied)" if math.isnan(found.tau) else f"{found.tau:.3f}"
        lines.append(f"agreement over {found.pairs} pairs: Kendall tau-b {tau}, same tier {found.tiers:.3f}")
    return "\n".join(lines)


def append(path: Path, graded: Graded, params: CreditParams) -> None:
    """One line of JSON."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(graded.plain(params)) + "\n")
