"""The charts of the page: which metrics, in which figure, against which references."""

import math
from collections.abc import Mapping

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.tracking.metrics import Metrics
from gagar_mcore.viewer.charts import Chart, Series

LOGPROB_TOLERANCE = 1e-3


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"


def charts(recipe: Recipe | None, metrics: Mapping[int, Metrics]) -> list[Chart]:
    """All figures; rates are drawn against those of the initial policy."""
    cap = recipe.method.cap if recipe and recipe.method.name == "gagar" else None
    return [
        Chart(
            "Pass rate",
            (Series("training", "rollout/pass_rate", "a"), Series("held back", "eval/pass_rate", "a strong", True)),
            _share,
            _percent,
            references=_initial(metrics, "eval/pass_rate"),
        ),
        Chart(
            "Clean share of passes",
            (Series("training", "rollout/clean_share", "b"), Series("held back", "eval/clean_share", "b strong", True)),
            _share,
            _percent,
            references=_initial(metrics, "eval/clean_share"),
        ),
        Chart("Mean reward", (Series("reward", "rollout/reward_mean", "a strong"),), _plain),
        Chart(
            "Tiers of graded passes",
            tuple(Series(f"tier {tier}", f"grading/tier{tier}", f"tier{tier}") for tier in (1, 2, 3)),
            _share,
            _percent,
            include=(0.0, 1.0),
            stacked=True,
        ),
        Chart(
            "Lambda",
            (Series("mean over kept groups", "credit/lambda_mean", "c"),),
            _plain,
            references=(("unchanged", 1.0), *([("cap", cap)] if cap else [])),
        ),
        Chart(
            "Groups",
            (
                Series("kept", "groups/kept", "tier1"),
                Series("all pass", "groups/dropped_all_pass", "pale"),
                Series("all fail", "groups/dropped_all_fail", "grey"),
                Series("too few valid", "groups/dropped_too_few_valid", "tier3"),
                Series("all hacked", "groups/dropped_all_hacked", "hack"),
            ),
            _count,
            stacked=True,
        ),
        Chart("Generated tokens a trajectory", (Series("tokens", "rollout/tokens_mean", "d"),), _plain),
        Chart("Turns a trajectory", (Series("turns", "rollout/turns_mean", "d"),), _plain),
        Chart("Entropy (nats a token)", (Series("entropy", "rollout/entropy", "c"),), _plain),
        Chart(
            "Log-prob difference, trainer and engine",
            (Series("mean absolute difference", "train/rollout_logprob_abs_diff", "c"),),
            lambda value: f"{value:.1e}",
            references=(("tolerated", LOGPROB_TOLERANCE),),
            log=True,
        ),
        Chart("Gradient norm", (Series("norm", "train/grad_norm", "c"),), _plain),
        Chart(
            "Time by stage (seconds)",
            (
                Series("collect", "time/collect", "stage1"),
                Series("train", "time/train", "stage3"),
                Series("load weights", "time/load", "stage4"),
            ),
            _seconds,
            stacked=True,
        ),
        Chart("Grading a group (seconds)", (Series("mean", "time/grade", "b"),), _seconds),
    ]


def _initial(metrics: Mapping[int, Metrics], name: str) -> tuple[tuple[str, float], ...]:
    value = metrics.get(0, {}).get(name, math.nan)
    return (("initial policy", value),) if math.isfinite(value) else ()
