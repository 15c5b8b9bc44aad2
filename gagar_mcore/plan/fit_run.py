"""The times and rates of a simulation, fitted to what a run has recorded."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, pvariance
from typing import Any

from gagar_mcore.config.load import RecipeError, validate
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.simulate import SimulateSection
from gagar_mcore.plan.latency import Latency
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain
from gagar_mcore.records.store import read_json
from gagar_mcore.records.types import Group, Trajectory
from gagar_mcore.tracking.metrics import scan_metrics

NEWEST = 2000  # trajectories that are looked at


def fitted(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with a `simulate` section that is like the run: what it has not recorded stays as it is. Turns are fitted as
    they were, those that a limit cut short included. Raises RecipeError where the run has no trajectory, RecordError for a
    damaged one."""
    layout = RunLayout(run)
    paths = sorted(layout.root.glob("steps/*/trajectories/*.json"))[-NEWEST:]
    if not paths:
        raise RecipeError(f"{run}: holds no trajectories to fit to; name the directory of a run that has sampled some")
    trajectories = [from_plain(Trajectory, read_json(path)) for path in paths]
    groups = [from_plain(Group, read_json(path)) for path in sorted(layout.root.glob("steps/*/groups/*.json"))]
    found = {
        **_latencies(trajectories, groups, layout),
        **_turns([t for t in trajectories if t.valid and t.turns]),
        **_pass_rates([t for t in trajectories if t.valid]),
        "fault": fmean(not t.valid for t in trajectories),
    }
    section = validate(SimulateSection, recipe.simulate.model_dump() | found, str(run))
    return recipe.model_copy(update={"simulate": section})


def _latencies(trajectories: Sequence[Trajectory], groups: Sequence[Group], layout: RunLayout) -> dict[str, Any]:
    turns = [turn for t in trajectories for turn in t.turns]
    trained = [metrics["time/train"] for metrics in scan_metrics(layout.metrics).steps.values() if "time/train" in metrics]
    measured: dict[str, Iterable[float]] = {
        "turn": (turn.engine_seconds or turn.seconds for turn in turns),
        "command": (turn.seconds - turn.engine_seconds for turn in turns if turn.engine_seconds),
        "start": (t.seconds - sum(turn.seconds for turn in t.turns) for t in trajectories if t.valid),
        "test": (t.verification.seconds for t in trajectories if t.verification),
        "grade": (group.verdict.seconds for group in groups if group.verdict),
    }
    fits = {name: dict(_fit(list(values))) for name, values in measured.items()}
    return {name: fit for name, fit in fits.items() if fit} | ({"train": {"median": median(trained)}} if trained else {})


def _fit(values: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Median and spread; nothing where there is no value above 0."""
    if any(value > 0 for value in values):
        latency = Latency.alike([max(0.0, value) for value in values])
        yield from (("median", latency.median), ("spread", latency.spread))


def _turns(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Of the spread of turns, `task_share` is the variance of the groups' means beyond what chance gives them."""
    if not trajectories:
        return {}
    counts = {t.id: math.log(len(t.turns)) for t in trajectories}
    groups = _by_group(trajectories)
    within = fmean(pvariance([counts[t.id] for t in members]) for members in groups)
    total = pvariance(counts.values())
    latency = Latency.fitted([len(t.turns) for t in trajectories])
    share = max(0.0, 1.0 - within / total) if total else 0.0
    return {"turns": {"median": latency.median, "spread": latency.spread}, "task_share": share}


def _pass_rates(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Beta distribution of the tasks' pass rates by the moments of a beta-binomial (Kleinman, 1973): the variance of the groups'
    pass rates is m (1 - m) / n (1 + (n - 1) r), with r = 1 / (alpha + beta + 1)."""
    rates = [(fmean(t.passed for t in members), len(members)) for members in _by_group(trajectories) if len(members) > 1]
    mean = fmean(rate for rate, _ in rates) if rates else 0.0
    if not 0 < mean < 1:
        return {}
    size = fmean(count for _, count in rates)
    spread = pvariance([rate for rate, _ in rates])
    correlation = (spread * size / (mean * (1 - mean)) - 1) / (size - 1)
    strength = 1 / min(max(correlation, 0.01), 0.95) - 1
    return {"pass_alpha": mean * strength, "pass_beta": (1 - mean) * strength}


def _by_group(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group_id].append(trajectory)
    return list(groups.values())
