"""What a rank has to write of a sharded checkpoint, apart from the writing, which a thread can do while training goes on."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_checkpoint
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)

COMMON = "common.pt"  # values that are no tensors; none here
OPTIMIZER = "optimizer.state."  # tensors of these names are copies already, see `sharded_state`


class SaveFailed(RuntimeError):
    """A rank could not write its part of a checkpoint."""


class Staged(TorchDistSaveShardedStrategy):
    """The save strategy of `dist_checkpointing.save` in two parts: `save` keeps what this rank writes, with `copy` in host memory
    of its own, and `write` writes it. Megatron's own forks a process a file: that hangs where the parent has OpenMP threads, and
    the processes outlive a killed rank."""

    def __init__(self, copy: bool) -> None:
        super().__init__("torch_dist", 1)
        self._copy = copy
        self._state: dict[str, Any] = {}

    def save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> None:
        mine, *_ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
        for shard in (shard for shards in mine.values() for shard in shards):
            if self._copy and isinstance(shard, ShardedTensor) and not shard.key.startswith(OPTIMIZER):
                shard.data = shard.data.detach().to("cpu", copy=True)
        self._state = mcore_to_pyt_state_dict(mine, False)

    def write(self, directory: Path, group: dist.ProcessGroup | None = None) -> None:
        """A collective of `group`. Raises SaveFailed on all ranks where one of them cannot write."""
        try:
            torch_checkpoint.save(
                self._state,
                storage_writer=torch_checkpoint.FileSystemWriter(directory),
                planner=MCoreSavePlanner(flatten_state_dict=False),
                process_group=group,
            )
        except torch_checkpoint.CheckpointException as error:  # no Exception, for whatever reason
            rank, (reason, _) = next(iter(error.failures.items()))
            raise SaveFailed(f"{directory}: rank {rank} could not write its part: {reason}") from error


def stage(state: dict[str, Any], directory: Path, copy: bool) -> Staged:
    """Agree on who writes what of a sharded `state` into the empty `directory`. A collective."""
    staged = Staged(copy)
    dist_checkpointing.save(state, str(directory), staged)
    if dist.get_rank() == 0 and not (directory / COMMON).exists():
        torch.save({}, directory / COMMON)  # 0.19 writes none and reads either, 0.16 cannot read without
    return staged
