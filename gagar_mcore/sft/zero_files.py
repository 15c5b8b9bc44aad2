"""What DeepSpeed's ranks write: checkpoints to go on from, and the model in Hugging Face format."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import (
    MANIFEST,
    RecordError,
    begin_directory,
    finish_directory,
    publish_directory,
    read_manifest,
)
from gagar_mcore.trainer.first_rank import from_first_rank
from gagar_mcore.weights.files import read_companions

log = logging.getLogger(__name__)
KIND = "zero-checkpoint"
TAG = "state"


def publish_state(engine: Any, layout: RunLayout, fence: Fence, step: int, stage: int) -> None:
    """Weights, master weights and optimizer after `step`, each rank's shards written by itself. A collective."""
    target = layout.checkpoint(step)
    place = from_first_rank(lambda: None if (target / MANIFEST).is_file() else begin_directory(target))
    if place is None:
        return
    engine.save_checkpoint(str(place), tag=TAG, save_latest=False)
    dist.barrier()
    if dist.get_rank() == 0:
        finish_directory(place, target, KIND, fence.epoch, {"step": step, "ranks": dist.get_world_size(), "stage": stage}, fence)
    dist.barrier()


def restore_state(engine: Any, layout: RunLayout, stage: int) -> int:
    """Load the newest whole checkpoint of the run; returns its step, 0 where there is none. A collective. Raises RecordError
    where it was saved by another number of ranks or another stage, whose shards are others."""
    found = from_first_rank(lambda: _newest_whole(layout))
    if found is None:
        return 0
    path, meta = found
    if (meta["ranks"], meta["stage"]) != (dist.get_world_size(), stage):
        raise RecordError(
            f"{path}: saved by {meta['ranks']} ranks of stage {meta['stage']}; "
            f"go on with trainer.dp={meta['ranks']} sft.deepspeed.stage={meta['stage']}"
        )
    loaded, _ = engine.load_checkpoint(str(path), tag=TAG)
    if loaded is None:
        raise RecordError(f"{path}: DeepSpeed finds no state there")
    log.warning("rank %d continues after step %d", dist.get_rank(), meta["step"])
    return int(meta["step"])


def publish_model(
    model: Any, start: Path, target: Path, fence: Fence, gathered: Callable[[Tensor], AbstractContextManager[Any]]
) -> None:
    """The weights in Hugging Face format, in their precision, with tokenizer and all else of `start`; rank 0 holds all of them
    in host memory. What is published at `target` already stays. A collective. Raises RuntimeError for a weight that is not
    finite."""
    if from_first_rank(lambda: (target / MANIFEST).is_file()):
        return
    whole: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        with gathered(parameter):
            if not torch.isfinite(parameter).all():
                raise RuntimeError(f"{name}: not finite, of which nothing is published: look at the learning rate")
            if dist.get_rank() == 0:
                whole[name] = parameter.detach().to("cpu", copy=True)

    def fill(directory: Path) -> dict[str, Any]:
        model.save_pretrained(directory, state_dict=whole)
        for name, content in read_companions(start).items():
            if not (directory / name).exists():
                (directory / name).write_bytes(content)
        return {"version": 0}

    if dist.get_rank() == 0:
        target.parent.mkdir(parents=True, exist_ok=True)
        publish_directory(target, "weights", fence.epoch, fill, fence)
    dist.barrier()


def _newest_whole(layout: RunLayout) -> tuple[Path, dict[str, Any]] | None:
    """A damaged one is passed over, which is logged."""
    for path in sorted((layout.root / "checkpoints").glob("[0-9]*-[0-9]*"), reverse=True):
        try:
            return path, read_manifest(path, KIND, verify=True).meta
        except RecordError as error:
            log.warning("skipped a checkpoint: %s", error)
    return None
