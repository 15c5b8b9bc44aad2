"""The loop of supervised fine-tuning, whichever library computes a step."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gagar_mcore.config.sft import SftSection
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.sft.data import SftData
from gagar_mcore.sft.schedule import learning_rate

Metrics = dict[str, float]


class Trainee(Protocol):
    """A model in training, held by all ranks together. Each method is a collective."""

    def restore(self) -> int:
        """Set weights and optimizer from the newest checkpoint of the run, or from the beginning; returns the last step taken."""

    def train_step(self, data: SftData, step: int, lr: float) -> Metrics:
        """Take one optimizer step, `step` from 0; returns its metrics. Raises RuntimeError for a gradient that is not finite."""

    def loss(self, data: SftData) -> float:
        """Weighted mean negative log-likelihood of all of `data`, without gradient."""

    def save(self, step: int) -> None:
        """Publish a checkpoint of the state after `step`."""

    def export(self, target: Path) -> None:
        """Publish the weights in Hugging Face format; what is published at `target` already stays."""

    def finish(self) -> None:
        """Until nothing is under way any more."""


def fine_tune(
    trainee: Trainee,
    section: SftSection,
    data: SftData,
    heldout: SftData | None,
    layout: RunLayout,
    report: Callable[[int, Metrics], None],
) -> None:
    """Train on the steps of `data` that no checkpoint covers and `report` each (from 1), where it is measured with its weights
    published. A collective."""
    for step in range(trainee.restore() + 1, data.num_steps + 1):
        metrics = trainee.train_step(data, step - 1, learning_rate(section, step, data.num_steps))
        if is_measured(section, step, data.num_steps):
            if heldout is not None:
                metrics |= {"sft/heldout_loss": trainee.loss(heldout)}
            trainee.export(weights_after(layout, step, data.num_steps))
        report(step, metrics)
        if step % section.checkpoint_every == 0 and step < data.num_steps:
            trainee.save(step)
    trainee.finish()


def is_measured(section: SftSection, step: int, steps: int) -> bool:
    return step == steps or (section.eval_every > 0 and step % section.eval_every == 0)


def weights_after(layout: RunLayout, step: int, steps: int) -> Path:
    """Where the weights after a measured step are published; the last are what the fine-tuning was for."""
    return layout.root / "checkpoint" if step == steps else layout.weights(step)
