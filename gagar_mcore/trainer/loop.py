"""The trainer's loop: wait for the batch of a step, apply it, publish metrics and weights, save checkpoints."""

import logging
from functools import partial

import torch
import torch.distributed as dist

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.batch import Batch, read_batch
from gagar_mcore.records.epochs import Fence, min_batch_epoch, read_epochs
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST, publish_json, read_manifest
from gagar_mcore.trainer.checkpoint import CheckpointWriter, load_checkpoint
from gagar_mcore.trainer.delta import publish_delta
from gagar_mcore.trainer.lifetime import wait_for_batch
from gagar_mcore.trainer.parking import parked
from gagar_mcore.trainer.policy import apply_batch
from gagar_mcore.trainer.publish import FILE_BYTES, publish_together, write_shards
from gagar_mcore.trainer.scoring import load_reference
from gagar_mcore.trainer.setup import Policy, build_policy
from gagar_mcore.trainer.shards import load_tensors, local_tensors
from gagar_mcore.trainer.weight_checks import check_weights
from gagar_mcore.weights.files import read_companions
from gagar_mcore.weights.publish import publish_weights
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage

log = logging.getLogger(__name__)


def train(layout: RunLayout, recipe: Recipe, fence: Fence) -> None:
    """Apply the batches after the newest complete checkpoint in order, up to `train.steps`. Killed at any moment and started
    again it comes to the same weights: what it had published is made again and compared. Runs on every rank."""
    initial = open_initial(layout)
    policy = build_policy(recipe.model.of(initial.model), recipe.trainer)
    storage = Storage(policy.model, recipe.publish.format or recipe.trainer.precision)
    companions = storage.companions(read_companions(layout.weights(0)))
    reference = load_reference(policy, initial.read) if recipe.trainer.loss.kl_coef else None
    applied = restore(policy, layout, initial)
    tell(layout, applied, fence)
    checkpoints = CheckpointWriter(layout, fence, recipe.trainer)
    for step in range(applied + 1, recipe.train.steps + 1):
        with parked(policy, recipe.trainer.park):
            batch = next_batch(layout, step, recipe.trainer.batch_timeout_s)
        metrics = apply_batch(policy, batch, recipe, step, reference)
        check_weights(policy)
        if dist.get_rank() == 0:
            fence()
            publish_json(layout.step_metrics(step, "train"), metrics, fence.epoch)
        write = partial(write_shards, local_tensors(policy.chunks), storage, FILE_BYTES)
        publish_together(write, companions, partial(publish_weights, layout, step, fence=fence))
        if recipe.engine.update == "delta":
            publish_delta(layout, step)
        torch.cuda.empty_cache()  # an engine on the same GPU takes its turn; what was scratch of the step is its now
        tell(layout, step, fence)
        if step == recipe.train.steps or step % recipe.train.checkpoint_every == 0:
            checkpoints.save(policy, step)
        checkpoints.raise_failure()
    checkpoints.wait()


def tell(layout: RunLayout, applied: int, fence: Fence) -> None:
    """Let the controller know which step the weights here belong to."""
    if dist.get_rank() == 0:
        publish_json(layout.trainer_state, {"applied": applied}, fence.epoch)


def open_initial(layout: RunLayout) -> PublishedCheckpoint:
    """Version 0, which a run keeps. Raises RecordError where it is not published, or damaged."""
    read_manifest(layout.weights(0), "weights")
    return PublishedCheckpoint(layout.weights(0))


def restore(policy: Policy, layout: RunLayout, initial: PublishedCheckpoint) -> int:
    """Set the weights from the newest checkpoint, or from version 0; returns the last applied step."""
    step = load_checkpoint(policy, layout)
    if step is None:
        load_tensors(policy.chunks, policy.model, initial.read)
    log.warning("rank %d continues after step %d", dist.get_rank(), step or 0)
    return step or 0


def next_batch(layout: RunLayout, step: int, timeout_s: float) -> Batch:
    """Wait for the batch of `step` from a controller that owned the run when it wrote it; raises as `wait_for_batch` does."""
    wait_for_batch(lambda: is_current(layout, step), layout.batch(step), timeout_s)
    batch, _ = read_batch(layout.batch(step))
    return batch


def is_current(layout: RunLayout, step: int) -> bool:
    """Whether the batch of `step` is there; one that a fenced controller left is not. Raises RecordError for a damaged one."""
    path = layout.batch(step)
    if not (path / MANIFEST).is_file():
        return False
    return read_manifest(path, "batch").epoch >= min_batch_epoch(read_epochs(layout), step)
