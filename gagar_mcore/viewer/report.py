"""`report.html`: one run on one page that opens offline, loads nothing and runs nothing."""

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from gagar_mcore.config.load import dump_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import write_file
from gagar_mcore.tracking.metrics import Metrics
from gagar_mcore.viewer.charts import draw
from gagar_mcore.viewer.figures import charts
from gagar_mcore.viewer.groups import DrawnGroup, by_step, draw_groups
from gagar_mcore.viewer.headline import Rate, headline
from gagar_mcore.viewer.html import Markup, element, raw
from gagar_mcore.viewer.load import RunReader
from gagar_mcore.viewer.select import EARLIER_STEPS, LATEST_STEPS, Selection, select_groups
from gagar_mcore.viewer.steps import steps_table


def write_report(run: Path) -> Path:
    """Draw the run in directory `run` as it is now, finished or not, and return the path of the page.
    Raises FileNotFoundError where `run` is no run directory."""
    layout = RunLayout(run)
    if not (layout.recipe.exists() or layout.metrics.exists()):
        raise FileNotFoundError(f"{run}: no run directory, it has neither {layout.recipe.name} nor {layout.metrics.name}")
    write_file(layout.report, page(RunReader(layout)).encode())
    return layout.report


def page(reader: RunReader) -> str:
    """The whole page. It contains no script, and its policy lets a browser use nothing but the one style sheet in it."""
    recipe, metrics = reader.recipe(), reader.metrics()
    selection = select_groups(reader)
    groups = draw_groups(reader, selection)
    title = recipe.name if recipe else reader.layout.root.name
    main = element(
        "main",
        _header(title, recipe, metrics),
        element("div", *[_rate(rate) for rate in headline(metrics)], class_="rates"),
        element("div", *[draw(chart, metrics) for chart in charts(recipe, metrics)], class_="charts"),
        steps_table(metrics),
        element("h2", "Groups"),
        element("p", _shown(selection, groups), class_="note"),
        by_step(groups),
        _recipe(recipe),
        _damaged(reader.damaged),
    )
    return "<!doctype html>\n" + element("html", _head(title), element("body", main), lang="en")


def _head(title: str) -> Markup:
    style = files("gagar_mcore.viewer").joinpath("report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · gagar"),
        element("style", raw(style)),
    )


def _header(title: str, recipe: Recipe | None, metrics: Mapping[int, Metrics]) -> Markup:
    last = max(metrics, default=0)
    facts = [f"step {last} of {recipe.train.steps}" if recipe else f"step {last}"]
    if recipe:
        facts += [
            f"model {Path(recipe.model.init).name}",
            f"{recipe.rollout.groups_per_step} groups of {recipe.rollout.group_size}",
            f"TP {recipe.trainer.tp} · EP {recipe.trainer.ep} · DP {recipe.trainer.dp}",
            f"seed {recipe.seed}",
        ]
    method = element("span", recipe.method.name, class_="method") if recipe else None
    return element(
        "header", element("h1", title, method), element("ul", *[element("li", fact) for fact in facts], class_="facts")
    )


def _rate(rate: Rate) -> Markup:
    change = 100 * (rate.end - rate.start)
    style = "up" if change > 0 else "down" if change < 0 else "same"
    numbers = [
        element("span", f"{100 * rate.start:.1f}", class_="from"),
        element("span", "→", class_="arrow"),
        f"{100 * rate.end:.1f}",
        element("span", "%", class_="unit"),
    ]
    note = [element("span", f"{change:+.1f} points", class_=f"change {style}"), rate.where]
    if rate.end_margin is not None:
        margin = f"± {100 * rate.end_margin:.1f} at 95 %"
        note += [", ", element("span", margin, title="of the last, by the Wilson interval, its sessions taken as independent")]
    return element(
        "section",
        element("h2", rate.title),
        element("p", *numbers, class_="big"),
        element("p", *note, class_="note"),
        class_=f"rate {rate.title.lower().replace(' ', '-')}",
    )


def _shown(selection: Selection, groups: Sequence[DrawnGroup]) -> str:
    if not selection.total:
        return "No group is finished yet."
    if len(groups) == selection.total:
        said = f"All {selection.total} groups are shown."
    else:
        said = (
            f"{len(groups)} of {selection.total:,} groups are shown: those of the last {LATEST_STEPS} steps, and one of each "
            f"of up to {EARLIER_STEPS} earlier steps, as far as they fit. The rest is in the run directory."
        )
    shortened = sum(group.shortened for group in groups)
    return said + (f" In {shortened} of them long texts are cut, each at a place that says so." if shortened else "")


def _recipe(recipe: Recipe | None) -> Markup | None:
    return (
        element("details", element("summary", "Recipe"), element("pre", dump_recipe(recipe)), class_="fold") if recipe else None
    )


def _damaged(damaged: Counter[str]) -> Markup | None:
    if not damaged:
        return None
    counts = ", ".join(f"{kind} ({count})" for kind, count in sorted(damaged.items()))
    return element("p", f"Left out because they were missing or damaged: {counts}.", class_="cut")
