"""Between checkpoints in Hugging Face format and Megatron's, on ranks that each hold their part of the model.
Imported after `rank.start_rank`."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch import Tensor

from gagar_mcore.config.conversion import Conversion
from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.backends import best_backend
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.megatron import Execution, transformer_config
from gagar_mcore.models.weight_map import Rule
from gagar_mcore.records.store import publish_directory
from gagar_mcore.trainer.setup import build_chunk, parallelism
from gagar_mcore.trainer.sharded_state import model_state
from gagar_mcore.trainer.shards import load_tensors, local_tensors, owned_rules, whole_tensors
from gagar_mcore.trainer.staging import stage
from gagar_mcore.weights.files import read_companions, write_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage, units_of
from gagar_mcore.weights.stream import plan_files, shard_name, write_files, write_index


def to_megatron(job: Conversion) -> None:
    """Each rank reads what it holds, one parameter at a time, and saves it. A collective."""
    source = PublishedCheckpoint(job.source)
    chunks = build_chunks(source.model, job.trainer)
    load_tensors(chunks, source.model, source.read)
    companions = Storage(source.model, "bf16").companions(read_companions(job.companions))

    def write(directory: Path) -> None:
        stage(model_state(chunks), directory, copy=False).write(directory)

    meta = {"model_only": True, "precision": job.layout.precision}
    _publish(job.target, "checkpoint", write, companions, meta)


def to_huggingface(job: Conversion) -> None:
    """Each parameter is put together on one of the ranks that hold it, which writes it into a file of its own. A collective."""
    model = read_config(job.companions)
    storage = Storage(model, job.format, job.naming)
    chunks = build_chunks(model, job.trainer)
    state = dist_checkpointing.load(model_state(chunks), str(job.source))
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(state[f"model{index}"])
    companions = storage.companions(read_companions(job.companions))

    def write(directory: Path) -> None:
        write_shards(local_tensors(chunks), storage, job.max_file_bytes, directory)

    _publish(job.target, "weights", write, companions, {"version": 0})


def build_chunks(model: ModelConfig, trainer: TrainerSection) -> tuple[Any, ...]:
    """This rank's part of the model, without gradients or optimizer."""
    model_parallel_cuda_manual_seed(0)
    backend = best_backend()
    config = transformer_config(model, parallelism(trainer, model), Execution(trainer.precision), backend)
    return tuple(build_chunk(model, config, backend, chunk, trainer) for chunk in range(trainer.vpp))


@torch.no_grad()
def write_shards(local: Mapping[str, Tensor], storage: Storage, max_bytes: int, directory: Path) -> None:
    """Every rank writes the tensors that it is first to hold, rank 0 also the index. What a rank has in memory beside its part
    of the model is one parameter, whole, as it is and as it is stored. A collective."""
    rules = owned_rules(local, storage.model)
    specs = [storage.specs(unit) for rule, is_first in rules if is_first for unit in units_of(rule.tensors)]
    plans: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(plans, plan_files(specs, max_bytes))
    count = sum(map(len, plans))
    before = sum(map(len, plans[: dist.get_rank()]))
    own = plans[dist.get_rank()]
    files = {directory / shard_name(before + number, count): file for number, file in enumerate(own, start=1)}
    write_files(files, chain.from_iterable(_stored(local, rule, storage) for rule, _ in rules))
    if dist.get_rank() == 0:
        everything = [file for plan in plans for file in plan]
        write_index({shard_name(number, count): file for number, file in enumerate(everything, start=1)}, directory)


def _stored(local: Mapping[str, Tensor], rule: Rule, storage: Storage) -> Iterator[tuple[str, Tensor]]:
    """What this rank has to write of one of its rules."""
    named = dict(zip(rule.tensors, whole_tensors(local, storage.model, rule), strict=False))  # nothing on most ranks
    for unit in units_of(rule.tensors) if named else ():
        yield from storage.encode({name: named[name] for name in unit}).items()


def _publish(
    target: Path, kind: str, write: Callable[[Path], None], companions: Mapping[str, bytes], meta: dict[str, Any]
) -> None:
    """All ranks write into the directory that rank 0 publishes."""

    def fill(directory: Path) -> dict[str, Any]:
        _write_together(write, directory)
        write_companions(companions, directory)
        return meta

    if dist.get_rank() == 0:
        target.parent.mkdir(parents=True, exist_ok=True)
        publish_directory(target, kind, 0, fill)
    else:
        _write_together(write, None)


def _write_together(write: Callable[[Path], None], directory: Path | None) -> None:
    box = [directory]
    dist.broadcast_object_list(box, src=0)
    assert box[0] is not None
    write(box[0])
    dist.barrier()
