"""What a batch must not hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.microbatch import device
from gagar_mcore.trainer.sequences import StepSequences
from gagar_mcore.trainer.update import over_replicas

DEFECTS = ("numbers", "an infinity", "nan")


def check_finite(batch: Batch, sequences: StepSequences, groups: Sequence[Sequence[int]]) -> None:
    """Raises ValueError that names the column, on every rank alike, so that none is left waiting; a rank reads the log-probs of
    its own `groups`. A collective."""
    own = (sequences.select(batch.logprobs, [index]) for indices in groups for index in indices)
    found = {"logprobs": max(map(defect, own), default=0)}
    found |= {name: defect(getattr(batch, name)) for name in ("advantages", "weights")}
    worst = over_replicas(torch.tensor(list(found.values()), device=device()), dist.ReduceOp.MAX)
    for name, rank in zip(found, worst.tolist(), strict=True):
        if rank:
            raise ValueError(f"batch: {name} holds {DEFECTS[rank]}; the engine or the credit step went wrong")


def defect(column: npt.NDArray[np.floating[Any]]) -> int:
    """Place in DEFECTS of what the column holds."""
    if np.isfinite(column).all():
        return 0
    return 2 if np.isnan(column).any() else 1
