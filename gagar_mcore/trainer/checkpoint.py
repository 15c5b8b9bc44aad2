"""Checkpoints of model and optimizer: sharded over the ranks, loadable in another layout, published whole or not at all."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state

from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import RecordError, publish_directory, read_manifest
from gagar_mcore.trainer.setup import Policy

KIND = "checkpoint"


def save_checkpoint(policy: Policy, layout: RunLayout, step: int, fence: Fence) -> None:
    """Save the state after `step`. A collective; rank 0 publishes what all ranks wrote. One that is already there stays."""
    state = _sharded_state(policy, is_loading=False)
    if dist.get_rank() != 0:
        if (directory := _share(None)) is not None:
            dist_checkpointing.save(state, directory)
        return
    path = layout.checkpoint(step, current_lineage(layout))
    if _is_complete(path):
        _share(None)
        return
    shutil.rmtree(path, ignore_errors=True)

    def fill(directory: Path) -> dict[str, Any]:
        dist_checkpointing.save(state, _share(str(directory)))
        return {"step": step}

    publish_directory(path, KIND, fence.epoch, fill, fence)


def load_checkpoint(policy: Policy, layout: RunLayout) -> int | None:
    """Restore the newest complete checkpoint; returns its step, None where there is none. A collective."""
    newest = None
    if dist.get_rank() == 0:
        newest = next((str(path) for path in _newest_first(layout) if _is_complete(path)), None)
    path = _share(newest)
    if path is None:
        return None
    _initialise_adam(policy)
    state = dist_checkpointing.load(_sharded_state(policy, is_loading=True), path)
    for index, chunk in enumerate(policy.chunks):
        chunk.load_state_dict(state[f"model{index}"])
    policy.optimizer.load_state_dict(state["optimizer"])
    return int(Path(path).name.split("-")[1])


def _sharded_state(policy: Policy, is_loading: bool) -> dict[str, Any]:
    metadata = {
        "chained_optim_avoid_prefix": True,
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    model = {f"model{index}": chunk.sharded_state_dict(metadata=metadata) for index, chunk in enumerate(policy.chunks)}
    return {**model, "optimizer": policy.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)}


def _initialise_adam(policy: Policy) -> None:
    """Loading wants every state of the optimizer in place; Megatron makes all but the step count of PyTorch's Adam."""
    for optimizer in policy.optimizer.chained_optimizers:
        inner = optimizer.optimizer
        if not isinstance(inner, torch.optim.AdamW):
            continue
        for parameter in (p for group in inner.param_groups for p in group["params"]):
            zeros = {name: torch.zeros_like(parameter.data) for name in ("exp_avg", "exp_avg_sq")}
            inner.state[parameter] = {"step": torch.tensor(0.0), **zeros}


def _newest_first(layout: RunLayout) -> Iterator[Path]:
    """Published checkpoints by lineage and step, the last one first."""
    names = [path.name for path in (layout.root / "checkpoints").glob("[0-9]*-[0-9]*")]
    for name in sorted(names, key=lambda n: tuple(map(int, n.split("-"))), reverse=True):
        yield layout.root / "checkpoints" / name


def _is_complete(path: Path) -> bool:
    try:
        read_manifest(path, KIND, verify=True)
    except RecordError:
        return False
    return True


def _share(value: str | None) -> str | None:
    """Rank 0's value, on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
