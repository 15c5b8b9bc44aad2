"""`gagar plan`: what a recipe takes on a number of GPUs, and which layouts would do."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import RecipeError
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.parameters import ParameterCount
from gagar_mcore.plan.communication import Communication, step_communication
from gagar_mcore.plan.cost import Cost, step_cost
from gagar_mcore.plan.gpus import Gpu, find_gpu
from gagar_mcore.plan.host import HostMemory, worst_host
from gagar_mcore.plan.memory import Memory, mean_stage, worst_stage
from gagar_mcore.plan.parameters import mean_parameters, parameters_on_rank
from gagar_mcore.plan.search import Search, gpu_misfit, host_misfit, search_layouts
from gagar_mcore.plan.weight_sync import WeightSync, weight_sync
from gagar_mcore.plan.workload import Workload, recipe_workload
from gagar_mcore.trainer.layout import check_layout

MOST_GPUS = 8192


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """One layout. stage: the pipeline stage whose ranks these are, None for the mean of all. misfit: why it does not fit."""

    layout: TrainerSection
    stage: int | None
    parameters: ParameterCount
    memory: Memory
    host: HostMemory
    communication: Communication
    cost: Cost
    misfit: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """chosen: the recipe's layout, or the best one of a model without a layout; None where nothing fits `gpus`.
    enough: where nothing fits, the least power of two of GPUs on which something does, None where none was found."""

    name: str
    model: ModelConfig
    gpu: Gpu
    gpus: int
    work: Workload
    chosen: LayoutPlan | None
    search: Search
    enough: int | None
    weight_sync: WeightSync
    remarks: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.chosen is not None and self.chosen.misfit is None


def make_plan(
    recipe: Recipe,
    model: ModelConfig,
    *,
    fixed: bool,
    gpus: int | None = None,
    gpu: str | None = None,
    context: int | None = None,
    mean: bool = False,
) -> Plan:
    """fixed: plan the layout of the recipe, dp taking the rest of `gpus`; else the best one. gpus: None for as many as the recipe
    has ranks, or without a layout as few as will do. context: tokens of every sequence. mean: see `mean_stage`.
    Raises RecipeError for a layout that the model or `gpus` cannot have."""
    device = find_gpu(gpu or recipe.cluster.gpu or "h200", recipe.cluster.node_memory_gb)
    work = recipe_workload(recipe, context)
    layout = _spread(recipe.trainer, gpus, model) if fixed else None
    gpus = gpus or (layout.world_size if layout else _enough(model, recipe.trainer, work, device))
    if gpus is None:
        raise RecipeError(f"{recipe.name}: fits no layout of up to {MOST_GPUS} {device.name}; lower the context or the tokens")
    if gpus > MOST_GPUS:
        raise RecipeError(f"gpus: {gpus} (--gpus, else tp * pp * cp * dp) are more than the {MOST_GPUS} of a plan; take fewer")
    search = search_layouts(model, recipe.trainer, work, device, gpus)
    if layout is None and search.feasible:
        layout = search.feasible[0].layout
    return Plan(
        name=recipe.name,
        model=model,
        gpu=device,
        gpus=gpus,
        work=work,
        chosen=plan_layout(model, layout, work, device, mean) if layout else None,
        search=search,
        enough=None if search.feasible else _enough(model, recipe.trainer, work, device, above=gpus),
        weight_sync=weight_sync(model),
        remarks=tuple(_remarks(model, work)),
    )


def plan_layout(model: ModelConfig, layout: TrainerSection, work: Workload, gpu: Gpu, mean: bool = False) -> LayoutPlan:
    if mean:
        stage, count, memory = None, mean_parameters(model, layout), mean_stage(model, layout, work)
    else:
        stage, memory = worst_stage(model, layout, work)
        count = parameters_on_rank(model, layout, stage)
    host = worst_host(model, layout)
    return LayoutPlan(
        layout=layout,
        stage=stage,
        parameters=count,
        memory=memory,
        host=host,
        communication=step_communication(model, layout, work),
        cost=step_cost(model, layout, work, gpu),
        misfit=gpu_misfit(memory, gpu) or host_misfit(host, layout, gpu),
    )


def _spread(layout: TrainerSection, gpus: int | None, model: ModelConfig) -> TrainerSection:
    ranks = layout.tp * layout.pp * layout.cp
    if gpus is not None and gpus % ranks:
        raise RecipeError(f"trainer: tp * pp * cp = {ranks} does not divide {gpus} GPUs; choose a multiple or another layout")
    layout = layout if gpus is None else layout.model_copy(update={"dp": gpus // ranks})
    try:
        check_layout(layout, model)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    return layout


def _enough(model: ModelConfig, start: TrainerSection, work: Workload, gpu: Gpu, above: int = 0) -> int | None:
    powers = (1 << exponent for exponent in range(MOST_GPUS.bit_length()))
    fitting = (gpus for gpus in powers if gpus > above and search_layouts(model, start, work, gpu, gpus).feasible)
    return next(fitting, None)


def _remarks(model: ModelConfig, work: Workload) -> list[str]:
    if work.context > model.max_positions:
        return [f"{work.context} tokens are more than the {model.max_positions} positions that the model's configuration states"]
    return []
