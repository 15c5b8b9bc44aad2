"""The recipe of one run."""

from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from gagar_mcore.config.agent import AgentSection
from gagar_mcore.config.base import Section
from gagar_mcore.config.cluster import ClusterSection
from gagar_mcore.config.learning import (
    GradingSection,
    MethodSection,
    ModelSection,
    RetentionSection,
    TrackingSection,
    TrainerSection,
    TrainSection,
)
from gagar_mcore.config.publish import PublishSection
from gagar_mcore.config.rollout import EngineSection, RolloutSection, VerifySection
from gagar_mcore.config.sandbox import SandboxSection
from gagar_mcore.config.schedule import ScheduleSection
from gagar_mcore.config.sft import SftSection
from gagar_mcore.config.simulate import SimulateSection
from gagar_mcore.config.tasks import TasksSection
from gagar_mcore.models.presets import PRESETS


class Recipe(Section):
    """Everything one run is told. `deterministic`: synchronous steps, batches in task order and a batch-invariant engine,
    so that equal recipes give bit-equal weights on equal machines."""

    name: str
    output: str
    seed: int = 17
    deterministic: bool = False
    model: ModelSection
    cluster: ClusterSection = ClusterSection()
    tasks: TasksSection = TasksSection()
    sandbox: SandboxSection = SandboxSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    agent: AgentSection = AgentSection()
    schedule: ScheduleSection = ScheduleSection()
    simulate: SimulateSection = SimulateSection()
    verify: VerifySection = VerifySection()
    grading: GradingSection = GradingSection()
    method: MethodSection = MethodSection()
    trainer: TrainerSection = TrainerSection()
    publish: PublishSection = PublishSection()
    train: TrainSection = TrainSection()
    sft: SftSection = SftSection()
    tracking: TrackingSection = TrackingSection()
    retention: RetentionSection = RetentionSection()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if contradictions := "; ".join(_contradictions(self)):
            raise ValueError(contradictions)
        return self


def _contradictions(recipe: Recipe) -> Iterator[str]:
    trainer, limit = recipe.trainer, recipe.trainer.max_tokens_per_sequence
    if recipe.model.preset is not None:
        yield from _against_preset(recipe, recipe.model.preset)
    if recipe.grading.grader == "none" and recipe.method.name != "grpo":
        yield f"grading.grader: none gives method {recipe.method.name} no verdicts; set grading.grader=static or method.name=grpo"
    if recipe.deterministic and recipe.grading.grader == "agentic":
        yield "grading.grader: a model grades otherwise each time; set grading.grader=static, or deterministic to false"
    yield from recipe.tasks.contradictions()
    yield from recipe.agent.contradictions(recipe.deterministic)
    yield from recipe.sandbox.contradictions(recipe.agent.kind)
    yield from _mixed_limits(recipe)
    if recipe.deterministic and recipe.rollout.partial:
        yield "rollout.partial: which groups a step has would depend on their speed; set it to false, or deterministic to false"
    if recipe.train.eval_every and not recipe.tasks.heldout:
        yield "train.eval_every: tasks.heldout_count is 0, which leaves nothing to evaluate on; set either"
    if trainer.overlong == "refuse" and limit is not None and limit < recipe.rollout.max_context:
        yield (
            f"trainer.max_tokens_per_sequence: {limit} refuses sequences that rollout.max_context {recipe.rollout.max_context} "
            "allows; set trainer.overlong=truncate, or lower max_context"
        )
    if trainer.quantise not in ("none", recipe.publish.format):
        yield f"trainer.quantise: {trainer.quantise} is not what engines get; set publish.format={trainer.quantise} too"
    if trainer.fp8 != "none" and trainer.device == "cpu":
        yield "trainer.fp8: needs a GPU; set trainer.device=cuda or trainer.fp8=none"
    if trainer.fp8 == "mxfp8" and recipe.cluster.gpu in ("h100", "h200"):
        yield f"trainer.fp8: an {recipe.cluster.gpu} has no mxfp8; set trainer.fp8=blockwise or cluster.gpu=b200"


def _mixed_limits(recipe: Recipe) -> Iterator[str]:
    for source in recipe.tasks.mix:
        where, context = f"tasks.mix.{source.name}", source.max_context or recipe.rollout.max_context
        if context > recipe.rollout.max_context:
            yield f"{where}.max_context: exceeds rollout.max_context, with which the engine starts; raise that"
        elif (new := source.max_new_tokens or recipe.rollout.max_new_tokens) >= context:
            yield f"{where}.max_new_tokens: {new} leaves no room in its max_context {context}; lower it, or raise that"


def _against_preset(recipe: Recipe, name: str) -> Iterator[str]:
    preset = PRESETS[name]
    if recipe.model.family not in (None, preset.family):
        yield f"model.family: {recipe.model.family}, but model.preset {name} is of {preset.family}; correct one of them"
    try:
        recipe.trainer.check_mtp(preset)
    except ValueError as error:
        yield str(error)
