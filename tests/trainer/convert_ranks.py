"""`convert_ranks.py ROOT`: each rank does the conversions of `ROOT/jobs.jsonl` one after another, counts the bytes of the tensors
that it has in its hands, and computes the logits of `ROOT/flash` for the tokens `ROOT/tokens.pt`, where there are any."""

import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.config.conversion import Conversion
from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.trainer.rank import build_groups, start_rank


class Meter:
    """Bytes of the tensors that the functions it watches have returned and that are still alive."""

    def __init__(self) -> None:
        self.alive = self.peak = self.total = 0

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            returned = function(*arguments)
            values = returned.values() if isinstance(returned, dict) else returned
            for tensor in [values] if isinstance(values, Tensor) else values:
                self._count(tensor)
            return returned

        return watched

    def _count(self, tensor: Tensor) -> None:
        size = tensor.nbytes
        self.alive, self.total = self.alive + size, self.total + size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(tensor, self._forget, size)

    def _forget(self, size: int) -> None:
        self.alive -= size


def main() -> None:
    root = Path(sys.argv[1])
    jobs = [Conversion.model_validate_json(line) for line in (root / "jobs.jsonl").read_text().splitlines()]
    start_rank(jobs[0].trainer)
    from gagar_mcore.trainer import convert, publish
    from gagar_mcore.weights.published import PublishedCheckpoint
    from gagar_mcore.weights.storage import Storage

    read, whole, encode = PublishedCheckpoint.read, publish.whole_tensors, Storage.encode
    meters = []
    for job in jobs:
        change_layout(job.trainer)
        meters.append(meter := Meter())
        PublishedCheckpoint.read = meter.watch(read)
        publish.whole_tensors, Storage.encode = meter.watch(whole), meter.watch(encode)
        (convert.to_megatron if job.direction == "hf-to-megatron" else convert.to_huggingface)(job)
        dist.barrier()
    counts = [{"peak": meter.peak, "total": meter.total} for meter in meters]
    (root / f"bytes-{dist.get_rank()}.json").write_text(json.dumps(counts))
    if (root / "tokens.pt").exists():
        save_logits(root, root / "flash", TrainerSection(tp=2, ep=2))


def change_layout(trainer: TrainerSection) -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    build_groups(trainer)


def save_logits(root: Path, checkpoint: Path, trainer: TrainerSection) -> None:
    """`[T, vocabulary]` of the tokens `[T]` in `ROOT/tokens.pt`, from a checkpoint as it was published."""
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    from gagar_mcore.trainer.convert import build_chunks
    from gagar_mcore.trainer.microbatch import pack_tokens
    from gagar_mcore.trainer.shards import load_tensors
    from gagar_mcore.trainer.update import run_model
    from gagar_mcore.weights.published import PublishedCheckpoint

    change_layout(trainer)
    source = PublishedCheckpoint(checkpoint)
    (gpt,) = chunks = build_chunks(source.model, trainer)
    load_tensors(chunks, source.model, source.read)
    tokens = torch.load(root / "tokens.pt").numpy().astype(np.int32)
    packed = pack_tokens(tokens, np.array([0, len(tokens)]), np.zeros(len(tokens), bool), trainer.tp)
    with torch.no_grad():
        logits = gather_from_tensor_model_parallel_region(gpt.output_layer(run_model(gpt, packed))[0])
    if dist.get_rank() == 0:
        torch.save(logits[: len(tokens), 0], root / "logits.pt")


if __name__ == "__main__":
    main()
