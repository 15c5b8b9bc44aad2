"""Between checkpoints in Hugging Face format and Megatron's, on ranks that each hold their part of the model.
Imported after `rank.start_rank`."""

from functools import partial
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from gagar_mcore.config.conversion import Conversion
from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.backends import best_backend
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.megatron import Execution, transformer_config
from gagar_mcore.trainer.publish import Sums, publish_new, write_shards
from gagar_mcore.trainer.setup import build_chunk, parallelism
from gagar_mcore.trainer.sharded_state import model_state
from gagar_mcore.trainer.shards import load_tensors, local_tensors
from gagar_mcore.trainer.staging import stage
from gagar_mcore.weights.files import read_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage


def to_megatron(job: Conversion) -> None:
    """Each rank reads what it holds, one parameter at a time, and saves it. A collective."""
    source = PublishedCheckpoint(job.source)
    chunks = build_chunks(source.model, job.trainer)
    load_tensors(chunks, source.model, source.read)
    companions = Storage(source.model, "bf16").companions(read_companions(job.companions))

    def write(directory: Path) -> Sums:
        stage(model_state(chunks), directory, copy=False).write(directory)
        return {}

    meta = {"model_only": True, "precision": job.layout.precision}
    publish_new(job.target, "checkpoint", write, companions, meta)


def to_huggingface(job: Conversion) -> None:
    """Each parameter is put together on one of the ranks that hold it, which writes it into a file of its own. A collective."""
    model = read_config(job.companions)
    storage = Storage(model, job.format, job.naming)
    chunks = build_chunks(model, job.trainer)
    state = dist_checkpointing.load(model_state(chunks), str(job.source))
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(state[f"model{index}"])
    companions = storage.companions(read_companions(job.companions))
    write = partial(write_shards, local_tensors(chunks), storage, job.max_file_bytes)
    publish_new(job.target, "weights", write, companions, {"version": 0})


def build_chunks(model: ModelConfig, trainer: TrainerSection) -> tuple[Any, ...]:
    """This rank's part of the model, without gradients or optimizer."""
    model_parallel_cuda_manual_seed(0)
    backend = best_backend()
    config = transformer_config(model, parallelism(trainer, model), Execution(trainer.precision), backend)
    return tuple(build_chunk(model, config, backend, chunk, trainer) for chunk in range(trainer.vpp))
