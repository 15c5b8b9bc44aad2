"""Which published checkpoint a restart takes: the newest whole one, of this model and with all that it is to hold."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

from gagar_mcore.models.config import ModelConfig
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST, RecordError, read_manifest
from gagar_mcore.trainer.first_rank import from_first_rank

log = logging.getLogger(__name__)
KIND = "checkpoint"


def newest_whole(layout: RunLayout) -> Path | None:
    """The newest checkpoint whose files are what their manifest says; each rank looks at its share of them. Damaged ones are
    skipped, which is logged. Raises RecordError where the run cannot go on from an older one. A collective."""
    damaged: list[Path] = []
    for path in from_first_rank(lambda: _newest_first(layout)):
        reason = _damage(path)
        if reason is None:
            _refuse_lost_batches(layout, damaged, _step(path))
            return path
        damaged.append(path)
        if dist.get_rank() == 0:
            log.warning("skipped a damaged checkpoint: %s", reason)
    _refuse_lost_batches(layout, damaged, 0)
    return None


def refuse_other_model(path: Path, meta: dict[str, Any], model: ModelConfig) -> None:
    """Raises RecordError, which names what differs, for a checkpoint of another architecture."""
    if meta.get("model_only"):
        raise RecordError(
            f"{path}: holds weights alone, as gagar convert writes them, and no state of a run to go on from; begin a run with "
            "them: gagar convert megatron-to-hf, then model.init=DIR of what it wrote, in another output"
        )
    if not {"model", "layout", "updates"} <= meta.keys():
        raise RecordError(f"{path}: another version wrote it; begin the run anew in another output")
    theirs, ours = meta["model"], as_record(model)
    differing = sorted((name for name in ours if theirs.get(name) != ours[name]), key=lambda name: name != "family")
    if differing:
        first = "; ".join(f"{name} is {theirs.get(name)} there, {ours[name]} here" for name in differing[:3])
        more = f", and {len(differing) - 3} more differ" if len(differing) > 3 else ""
        raise RecordError(f"{path}: holds another model: {first}{more}; begin the run anew in another output")


def refuse_missing(path: Path, wanted: dict[str, Any]) -> None:
    """Raises RecordError where the checkpoint lacks tensors that are to be loaded from it."""
    names = {base.key for base in nested_values(wanted) if isinstance(base, ShardedTensor | ShardedTensorFactory)}
    lacking = sorted(names - dist_checkpointing.load_tensors_metadata(str(path)).keys())
    if lacking:
        raise RecordError(
            f"{path}: has no {lacking[0]}, nor {len(lacking) - 1} others: it was saved while fewer parameters were trained; "
            "set trainer.freeze_router and trainer.mtp as they were then, or begin the run anew in another output"
        )


def as_record(model: ModelConfig) -> dict[str, Any]:
    """Plain JSON data, equal for equal models."""
    record: dict[str, Any] = json.loads(json.dumps(asdict(model)))
    return record


def is_whole(path: Path) -> bool:
    try:
        read_manifest(path, KIND, verify=True)
    except RecordError:
        return False
    return True


def _newest_first(layout: RunLayout) -> list[Path]:
    """By lineage and step."""
    paths = (layout.root / "checkpoints").glob("[0-9]*-[0-9]*")
    return sorted(paths, key=lambda path: tuple(map(int, path.name.split("-"))), reverse=True)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _damage(path: Path) -> str | None:
    """The first fault that any rank found in its share of the files."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    fault = None
    try:
        read_manifest(path, KIND, verify=True, share=(rank, ranks))
    except RecordError as error:
        fault = str(error)
    faults: list[str | None] = [None] * ranks
    dist.all_gather_object(faults, fault)
    return next(filter(None, faults), None)


def _refuse_lost_batches(layout: RunLayout, damaged: list[Path], step: int) -> None:
    """Retention keeps the batches after the newest checkpoint alone: those after an older one may be gone."""
    newer = [path for path in damaged if _step(path) > step]
    if newer and not (layout.batch(step + 1) / MANIFEST).is_file():
        raise RecordError(
            f"{newer[0]}: damaged, and the batch of step {step + 1}, from which training would have to go on without it, "
            "is no longer kept; restore the checkpoint from a copy"
        )
