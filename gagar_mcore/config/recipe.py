"""The recipe of one run."""

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
from gagar_mcore.config.rollout import EngineSection, RolloutSection, SandboxSection, TasksSection, VerifySection
from gagar_mcore.config.sft import SftSection


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
    verify: VerifySection = VerifySection()
    grading: GradingSection = GradingSection()
    method: MethodSection = MethodSection()
    trainer: TrainerSection = TrainerSection()
    train: TrainSection = TrainSection()
    sft: SftSection = SftSection()
    tracking: TrackingSection = TrackingSection()
    retention: RetentionSection = RetentionSection()
