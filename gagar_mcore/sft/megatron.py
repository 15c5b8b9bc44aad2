"""Fine-tuning on Megatron, for the models of this package. Imported after `rank.start_rank`."""

from pathlib import Path

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST
from gagar_mcore.sft.data import SftData
from gagar_mcore.sft.finetune import export, heldout_loss, starting_weights, train_step
from gagar_mcore.sft.loop import Metrics
from gagar_mcore.trainer.checkpoint import CheckpointWriter, load_checkpoint
from gagar_mcore.trainer.setup import build_policy
from gagar_mcore.trainer.shards import load_tensors


class MegatronTrainee:
    """`sft.loop.Trainee` in any layout of `trainer`. start: the checkpoint to begin with, or its configuration and tokenizer
    alone for random weights."""

    def __init__(self, recipe: Recipe, trainer: TrainerSection, start: Path, layout: RunLayout, fence: Fence) -> None:
        model, self._read = starting_weights(start, recipe.seed)
        self._policy = build_policy(recipe.model.of(model), trainer, recipe.sft.router_bias_update_rate)
        self._trainer, self._start, self._layout = trainer, start, layout
        self._checkpoints = CheckpointWriter(layout, fence, trainer)

    def restore(self) -> int:
        step = load_checkpoint(self._policy, self._layout)
        if step is None:
            load_tensors(self._policy.chunks, self._policy.model, self._read)
        return step or 0

    def train_step(self, data: SftData, step: int, lr: float) -> Metrics:
        self._checkpoints.raise_failure()
        return train_step(self._policy, data, self._trainer, step, lr)

    def loss(self, data: SftData) -> float:
        return heldout_loss(self._policy, data, self._trainer)

    def save(self, step: int) -> None:
        self._checkpoints.save(self._policy, step)

    def export(self, target: Path) -> None:
        if not (target / MANIFEST).is_file():
            export(self._policy, self._trainer.precision, self._start, target)

    def finish(self) -> None:
        self._checkpoints.wait()
