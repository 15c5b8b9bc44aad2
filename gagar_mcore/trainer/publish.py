"""Weights published by all ranks together: each writes the tensors that it is first to hold, rank 0 makes them visible.
Imported after `rank.start_rank`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.models.weight_map import Rule
from gagar_mcore.records.store import FileSum, publish_directory
from gagar_mcore.trainer.shards import owned_rules, whole_tensors
from gagar_mcore.weights.files import write_companions
from gagar_mcore.weights.storage import Storage, units_of
from gagar_mcore.weights.stream import plan_files, shard_name, write_files, write_index

FILE_BYTES = 5 * 10**9
Sums = Mapping[str, FileSum]
Write = Callable[[Path], Sums]


def publish_together(write: Write, companions: Mapping[str, bytes], publish: Callable[[Write], object]) -> None:
    """`publish(fill)` on rank 0, where `fill(directory)` has every rank `write` into the directory, puts the companions beside
    and returns what the ranks said of their files. A collective."""
    if dist.get_rank() == 0:
        publish(partial(_fill, write, companions))
    else:
        _fill(write, companions, None)


def publish_new(target: Path, kind: str, write: Write, companions: Mapping[str, bytes], meta: dict[str, Any]) -> None:
    """Publish what all ranks write as the directory `target`, which does not exist yet. A collective."""

    def publish(fill: Write) -> None:
        def fill_new(directory: Path) -> dict[str, Any]:
            fill(directory)
            return meta

        target.parent.mkdir(parents=True, exist_ok=True)
        publish_directory(target, kind, 0, fill_new)

    publish_together(write, companions, publish)


def _fill(write: Write, companions: Mapping[str, bytes], directory: Path | None) -> Sums:
    box = [directory]
    dist.broadcast_object_list(box, src=0)
    assert box[0] is not None
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, write(box[0]))  # and all have written
    if directory is not None:
        write_companions(companions, directory)
    return {name: known for part in parts for name, known in part.items()}


@torch.no_grad()
def write_shards(local: Mapping[str, Tensor], storage: Storage, max_bytes: int, directory: Path) -> Sums:
    """Every rank writes the tensors that it is first to hold, rank 0 also the index; returns size and hash of this rank's files.
    What a rank has in memory beside its part of the model is one parameter, whole, as it is and as it is stored. A collective."""
    rules = owned_rules(local, storage.model)
    specs = [storage.specs(unit) for rule, is_first in rules if is_first for unit in units_of(rule.tensors)]
    plans: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(plans, plan_files(specs, max_bytes))
    count = sum(map(len, plans))
    before = sum(map(len, plans[: dist.get_rank()]))
    own = plans[dist.get_rank()]
    files = {directory / shard_name(before + number, count): file for number, file in enumerate(own, start=1)}
    sums = write_files(files, chain.from_iterable(_stored(local, rule, storage) for rule, _ in rules))
    if dist.get_rank() == 0:
        everything = [file for plan in plans for file in plan]
        write_index({shard_name(number, count): file for number, file in enumerate(everything, start=1)}, directory)
    return {path.name: known for path, known in sums.items()}


def _stored(local: Mapping[str, Tensor], rule: Rule, storage: Storage) -> Iterator[tuple[str, Tensor]]:
    """What this rank has to write of one of its rules."""
    named = dict(zip(rule.tensors, whole_tensors(local, storage.model, rule), strict=False))  # nothing on most ranks
    for unit in units_of(rule.tensors) if named else ():
        yield from storage.encode({name: named[name] for name in unit}).items()
