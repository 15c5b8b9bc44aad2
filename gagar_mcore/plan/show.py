"""A plan as tables, or as JSON."""

import json
from dataclasses import asdict, fields
from typing import Any

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.parameters import active_parameters, count_parameters
from gagar_mcore.plan.gpus import node_gpus
from gagar_mcore.plan.plan import LayoutPlan, Plan
from gagar_mcore.plan.source import SIZES

SHOWN_LAYOUTS = 10
SHOWN_REASONS = 12


def print_plan(plan: Plan) -> None:
    console = Console()
    console.print(Text(_title(plan)))
    for remark in plan.remarks:
        console.print(Text(f"note: {remark}"))
    if plan.chosen is not None:
        console.print(Text(_layout_line(plan.chosen)))
        console.print(Columns(_details(plan, plan.chosen), padding=(1, 4)))
        console.print(Text(verdict(plan), style="green" if plan.fits else "red"))
    else:
        console.print(Text(verdict(plan), style="red"))
    console.print(_layouts(plan))
    console.print(_refusals(plan))


def plan_json(plan: Plan) -> str:
    """Bytes, seconds and counts, exact."""
    data: dict[str, Any] = {
        "name": plan.name,
        "fits": plan.fits,
        "verdict": verdict(plan),
        "remarks": list(plan.remarks),
        "gpu": asdict(plan.gpu) | {"usable_memory": plan.gpu.usable_memory, "usable_node_memory": plan.gpu.usable_node_memory},
        "gpus": plan.gpus,
        "enough_gpus": plan.enough,
        "step": asdict(plan.work) | {"tokens": plan.work.tokens},
        "parameters": _with_total(count_parameters(plan.model), "model") | {"active": active_parameters(plan.model)},
        "weight_sync": asdict(plan.weight_sync),
        "plan": None if plan.chosen is None else _chosen_json(plan, plan.chosen),
        "layouts": [
            _layout_json(c.layout) | {"stage": c.stage, "memory": c.memory.total, "seconds": c.cost.total}
            for c in plan.search.feasible
        ],
        "refused": dict(plan.search.refused.most_common()),
    }
    return json.dumps(data, indent=2)


def verdict(plan: Plan) -> str:
    """One sentence: whether it fits, and if not why and what would."""
    if plan.chosen is None:
        more = f"; {plan.enough} are enough" if plan.enough else ""
        return f"no layout fits {plan.gpus} {plan.gpu.name}{more}"
    used, usable = plan.chosen.memory.total / 1e9, plan.gpu.usable_memory / 1e9
    if plan.chosen.misfit is None:
        return f"fits: {used:.1f} of the {usable:.1f} GB of one {plan.gpu.name} that are free for it"
    other = "another layout below does" if plan.search.feasible else "no layout does"
    more = f"; {plan.enough} GPUs are enough" if plan.enough else ""
    return f"does not fit, {used:.1f} GB: {plan.chosen.misfit}; {other}{more}"


def _title(plan: Plan) -> str:
    count, work = count_parameters(plan.model), plan.work
    mtp = f" and {count.mtp / 1e9:.2f} B of multi-token prediction" if count.mtp else ""
    return (
        f"{plan.name}: {count.model / 1e9:.2f} B parameters{mtp}, {active_parameters(plan.model) / 1e9:.2f} B active\n"
        f"{plan.gpus} {plan.gpu.name}; a step of {work.sequences} sequences of {work.context} tokens, {work.tokens / 1e6:.1f} M"
    )


def _layout_line(chosen: LayoutPlan) -> str:
    layout = chosen.layout
    sizes = "  ".join(f"{size.upper()} {getattr(layout, size)}" for size in SIZES)
    where = "on the host" if layout.offload_optimizer else "on the GPU"
    return (
        f"{sizes}\n{layout.precision}, gradients {layout.gradient_dtype}, moments {layout.optimizer.state_dtype} {where}, "
        f"recomputation {layout.recompute}, {layout.tokens_per_microbatch} tokens a micro-batch on a rank"
    )


def _details(plan: Plan, chosen: LayoutPlan) -> list[RenderableType]:
    where = "mean stage" if chosen.stage is None else f"stage {chosen.stage}"
    whole = count_parameters(plan.model)
    parameters = _table(f"parameters, millions: model, a rank of {where}", "kind", "model", "rank")
    for kind in fields(whole):
        parameters.add_row(kind.name, *(f"{getattr(count, kind.name) / 1e6:,.1f}" for count in (whole, chosen.parameters)))
    return [
        parameters,
        _amounts(f"memory, GB a GPU of {where}", chosen.memory, 1e9),
        _host_table(plan, chosen),
        _amounts("sent in a step, GB a GPU", chosen.communication, 1e9),
        _amounts("seconds a step (a ranking, no prediction)", chosen.cost, 1),
        _amounts("new weights to the engines, GB", plan.weight_sync, 1e9, total=False),
    ]


def _host_table(plan: Plan, chosen: LayoutPlan) -> Table:
    table = _amounts("its host's memory, GB a GPU", chosen.host, 1e9)
    table.add_row("a node", f"{_on_node(plan, chosen) / 1e9:,.2f}")
    table.add_row("free there", f"{plan.gpu.usable_node_memory / 1e9:,.2f}", style="dim")
    return table


def _on_node(plan: Plan, chosen: LayoutPlan) -> float:
    return chosen.host.total * node_gpus(plan.gpus)


def _amounts(title: str, amounts: Any, unit: float, total: bool = True) -> Table:
    table = _table(title, "kind", "")
    for kind in fields(amounts):
        table.add_row(kind.name, f"{getattr(amounts, kind.name) / unit:,.2f}")
    if total:
        table.add_row("total", f"{amounts.total / unit:,.2f}", style="bold")
    return table


def _layouts(plan: Plan) -> Table:
    found = plan.search.feasible
    title = f"layouts that fit {plan.gpus} {plan.gpu.name}: {len(found)}, the cheapest first"
    table = _table(title, *(size.upper() for size in SIZES), "recompute", "optimizer", "GB", "seconds")
    for candidate in found[:SHOWN_LAYOUTS]:
        layout = candidate.layout
        table.add_row(
            *(str(getattr(layout, size)) for size in SIZES),
            layout.recompute,
            "host" if layout.offload_optimizer else "GPU",
            f"{candidate.memory.total / 1e9:.1f}",
            f"{candidate.cost.total:.1f}",
        )
    return table


def _refusals(plan: Plan) -> Table:
    table = _table(f"layouts that do not: {plan.search.refused.total()}", "how many", "why")
    reasons = plan.search.refused.most_common()
    for reason, count in reasons[:SHOWN_REASONS]:
        table.add_row(str(count), reason)
    if rest := sum(count for _, count in reasons[SHOWN_REASONS:]):
        table.add_row(str(rest), "other sizes that divide nothing; --json lists them")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="dim", box=None, padding=(0, 1), header_style="dim")
    for column in columns:
        left = column in ("kind", "why", "recompute", "optimizer")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def _chosen_json(plan: Plan, chosen: LayoutPlan) -> dict[str, Any]:
    return {
        "layout": _layout_json(chosen.layout),
        "stage": "mean" if chosen.stage is None else chosen.stage,
        "tokens_at_once": plan.work.tokens_at_once(chosen.layout),
        "microbatches": plan.work.microbatches(chosen.layout),
        "parameters": _with_total(chosen.parameters, "model"),
        "memory": _with_total(chosen.memory),
        "host_memory": _with_total(chosen.host) | {"node": _on_node(plan, chosen)},
        "communication": _with_total(chosen.communication),
        "seconds": _with_total(chosen.cost),
        "misfit": chosen.misfit,
    }


def _layout_json(layout: TrainerSection) -> dict[str, Any]:
    return layout.model_dump(include={*SIZES, "precision", "gradient_dtype", "recompute", "offload_optimizer"})


def _with_total(amounts: Any, name: str = "total") -> dict[str, Any]:
    return asdict(amounts) | {name: getattr(amounts, name)}
