"""What a step's collection says in numbers."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from gagar_mcore.records.types import Trajectory
from gagar_mcore.rollout.collect import Collection
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.tasks.question import Problem
from gagar_mcore.tasks.task import Task

Cleanliness = Callable[[Task, str], bool]


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def metrics_by_source(pairs: Sequence[tuple[Problem, Trajectory]], is_clean: Cleanliness) -> dict[str, float]:
    """`trajectory_metrics` of all, and those of each source under its name where there are several."""
    sources = sorted({task.source for task, _ in pairs})
    own = {name: [(task, t) for task, t in pairs if task.source == name] for name in sources if len(sources) > 1}
    named = {f"{name}/{k}": v for name, some in own.items() for k, v in trajectory_metrics(some, is_clean).items()}
    return trajectory_metrics(pairs, is_clean) | named


def trajectory_metrics(pairs: Sequence[tuple[Problem, Trajectory]], is_clean: Cleanliness) -> dict[str, float]:
    """Rates over trajectories: pass rate and lengths over the valid ones, clean share over the passing patches.
    `entropy` is the mean of -log p over the generated tokens, an unbiased estimate of the sampling entropy in nats."""
    valid = [(task, t) for task, t in pairs if t.valid]
    patches = [(task, t) for task, t in valid if t.passed and isinstance(task, Task)]
    clean = sum(is_clean(task, t.patch) for task, t in patches)
    generated = sum(t.generated_tokens for _, t in valid)
    return {
        "pass_rate": sum(t.passed for _, t in valid) / max(1, len(valid)),
        "reward_mean": mean([t.reward for _, t in valid]),
        "clean_share": clean / max(1, len(patches)),
        "clean_rate": clean / max(1, sum(isinstance(task, Task) for task, _ in valid)),
        "turns_mean": mean([len(t.turns) for _, t in valid]),
        "segments_mean": mean([len(t.segments) for _, t in valid]),
        "tokens_mean": mean([t.generated_tokens for _, t in valid]),
        "entropy": -sum(sum(t.logprobs) for _, t in valid) / max(1, generated),
        "invalid": len(pairs) - len(valid),
        "malformed_calls": mean([sum(not turn.ok for turn in t.turns) for _, t in valid]),
    }


def grading_metrics(groups: Sequence[FinishedGroup]) -> dict[str, float]:
    """Tier shares over the graded passing trajectories, counts of hacks and fallbacks, mean seconds a verdict."""
    credits = [g.group.credit for g in groups]
    tiers = [tier for c in credits for tier in c.tiers.values()]
    shares = {f"grading/tier{k}": tiers.count(k) / max(1, len(tiers)) for k in (1, 2, 3)}
    kept = [c for c in credits if c.kept]
    verdicts = [g.group.verdict for g in groups if g.group.verdict]
    return shares | {
        "time/grade": mean([verdict.seconds for verdict in verdicts]),
        "grading/hacks": sum(len(verdict.hacks) for verdict in verdicts),
        "grading/fallbacks": sum(c.fallback is not None for c in kept),
        "credit/lambda_mean": mean([c.lam for c in kept]),
        "credit/capped_share": mean([c.capped for c in kept]),
    }


def collection_metrics(collection: Collection, is_clean: Cleanliness) -> dict[str, Any]:
    """The metrics of one step's collection, over every sampled group, dropped ones included."""
    pairs = [(g.task, t) for g in collection.groups for t in g.trajectories]
    dropped = collection.dropped()
    reasons = ("all_pass", "all_fail", "too_few_valid", "all_hacked")
    return (
        {f"rollout/{name}": value for name, value in metrics_by_source(pairs, is_clean).items()}
        | {"groups/kept": len(collection.kept)}
        | {f"groups/dropped_{reason}": dropped[reason] for reason in reasons}
        | grading_metrics(collection.groups)
    )
