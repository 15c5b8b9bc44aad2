"""Evaluation on held-back tasks: pass rate and clean share of one weights version."""

import asyncio
from collections.abc import Callable, Sequence

from gagar_mcore.agent.session import SessionKey
from gagar_mcore.evals.cleanliness import is_clean
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import publish_json, read_json
from gagar_mcore.rollout.concurrency import gather_all
from gagar_mcore.rollout.group import Sampler
from gagar_mcore.rollout.metrics import metrics_by_source
from gagar_mcore.rollout.samples import Sample, sample_of
from gagar_mcore.tasks.question import Problem


async def evaluate(
    layout: RunLayout,
    sampler: Sampler,
    tasks: Sequence[Problem],
    version: int,
    samples: int,
    seed: int,
    epoch: int,
    concurrent: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Rates over `samples` sessions of each task, with the same draws for every version. Published once as `summary.json` and
    read back after a restart."""
    path = layout.evaluation(version) / "summary.json"
    if path.exists():
        stored: dict[str, float] = read_json(path)
        return stored
    bound = asyncio.Semaphore(concurrent)

    async def one(index: int, task: Problem) -> list[Sample]:
        keys = [SessionKey(seed, "eval", 0, f"e-g{index:04d}", member) for member in range(samples)]
        async with bound:
            trajectories = await sampler.sample(keys, task, lambda trajectory: None)
        progress()
        return [sample_of(task, t, is_clean) for t in trajectories]

    found = [sample for group in await gather_all(*(one(i, t) for i, t in enumerate(tasks))) for sample in group]
    metrics = metrics_by_source(found) | {"sessions": len(found), "tasks": len(tasks)}
    publish_json(path, metrics, epoch)
    return metrics
