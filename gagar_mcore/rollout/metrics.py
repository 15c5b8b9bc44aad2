"""What a step's collection says in numbers."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gagar_mcore.rollout.collect import Collection
from gagar_mcore.rollout.group import FinishedGroup
from gagar_mcore.rollout.samples import Sample


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def metrics_by_source(samples: Sequence[Sample]) -> dict[str, float]:
    """`sample_metrics` of all, and those of each source under its name where there are several."""
    sources = sorted({s.source for s in samples})
    own = {name: [s for s in samples if s.source == name] for name in sources if len(sources) > 1}
    named = {f"{name}/{k}": v for name, some in own.items() for k, v in sample_metrics(some).items()}
    return sample_metrics(samples) | named


def sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Rates over trajectories: pass rate and lengths over the valid ones, clean share over the passing patches.
    `entropy` is the mean of -log p over the generated tokens, an unbiased estimate of the sampling entropy in nats."""
    valid = [s for s in samples if s.valid]
    patches = [s for s in valid if s.patch]
    clean = sum(s.clean for s in patches)
    return {
        "pass_rate": sum(s.passed for s in valid) / max(1, len(valid)),
        "reward_mean": mean([s.reward for s in valid]),
        "clean_share": clean / max(1, sum(s.passed for s in patches)),
        "clean_rate": clean / max(1, len(patches)),
        "turns_mean": mean([s.turns for s in valid]),
        "segments_mean": mean([s.segments for s in valid]),
        "tokens_mean": mean([s.generated for s in valid]),
        "entropy": sum(s.surprise for s in valid) / max(1, sum(s.generated for s in valid)),
        "invalid": len(samples) - len(valid),
        "malformed_calls": mean([s.malformed for s in valid]),
    }


def staleness_metrics(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """How many versions behind the weights `version` the oldest token of a trajectory is, and how many were too old."""
    behind = [version - s.oldest for s in samples if s.valid and s.oldest is not None]
    return {
        "staleness_mean": mean(behind),
        "staleness_max": max(behind, default=0),
        "stale": sum(s.stale for s in samples),
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


def collection_metrics(collection: Collection) -> dict[str, Any]:
    """The metrics of one step's collection, over every sampled group, dropped ones included. Step s is collected with weights
    s - 1."""
    samples = [sample for g in collection.groups for sample in g.samples]
    dropped = collection.dropped()
    reasons = ("all_pass", "all_fail", "too_few_valid", "all_hacked")
    rollout = metrics_by_source(samples) | staleness_metrics(samples, collection.step - 1)
    return (
        {f"rollout/{name}": value for name, value in rollout.items()}
        | {"groups/kept": len(collection.kept)}
        | {f"groups/dropped_{reason}": dropped[reason] for reason in reasons}
        | grading_metrics(collection.groups)
    )
