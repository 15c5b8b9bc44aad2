"""What a version of the weights changes in the one before, published by all ranks together. Imported after `rank.start_rank`."""

import logging
from functools import partial
from pathlib import Path

import torch.distributed as dist

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import MANIFEST
from gagar_mcore.trainer.first_rank import from_first_rank
from gagar_mcore.trainer.publish import publish_new
from gagar_mcore.weights.deltas import KIND, comparable, delta_meta, delta_of, write_delta

log = logging.getLogger(__name__)


def publish_delta(layout: RunLayout, version: int) -> None:
    """Of the newest weights, `version`, unless it is there or the version before has other tensors: engines then copy the weights
    whole. A collective."""
    versions = from_first_rank(partial(_versions, layout, version))
    if versions is None:
        return
    base, target = versions
    write = partial(write_delta, base, target, share=(dist.get_rank(), dist.get_world_size()))
    publish_new(delta_of(target), KIND, write, {}, delta_meta(base, target))


def _versions(layout: RunLayout, version: int) -> tuple[Path, Path] | None:
    """Those to compare."""
    lineage = current_lineage(layout)
    target = layout.weights(version, lineage)
    before = (layout.weights(version - 1, older) for older in range(lineage, -1, -1))
    base = next((path for path in before if (path / MANIFEST).is_file()), None)
    if base is None or (delta_of(target) / MANIFEST).is_file():
        return None
    if not comparable(base, target):
        log.warning("%s: no delta: its tensors lie otherwise than those of %s", target.name, base.name)
        return None
    return base, target
