"""What a batch must not hold."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.records.batch import Batch
from gagar_mcore.records.experts import UNKNOWN
from gagar_mcore.trainer.microbatch import device
from gagar_mcore.trainer.sequences import StepSequences
from gagar_mcore.trainer.update import over_replicas

Column = npt.NDArray[Any]
WENT_WRONG = "the engine or the credit step went wrong, look into their logs"
RECORD = "sample with an engine that records this model's experts, or set trainer.routing=free"


@dataclass(frozen=True, slots=True)
class Defect:
    """is_in: whether entries of the column have it; what: it is, and its mend."""

    column: str
    is_in: Callable[[Column], Any]
    what: str


def check_batch(
    batch: Batch, model: ModelConfig, trainer: TrainerSection, sequences: StepSequences, groups: Sequence[Sequence[int]]
) -> None:
    """Raises ValueError that names the column's file, the defect and its mend, on every rank alike, so that none is left
    waiting; of columns of tokens a rank reads those of its own `groups`. A collective."""
    of_tokens = token_defects(model.vocab_size)
    if trainer.routing == "replay":
        check_experts(batch, model)
        of_tokens += expert_defects(model.num_experts)
    of_sequences = [defect for name in ("advantages", "weights") for defect in number_defects(name)]
    own = [index for indices in groups for index in indices]
    found = [any(defect.is_in(sequences.select(getattr(batch, defect.column), [i])) for i in own) for defect in of_tokens]
    found += [bool(defect.is_in(getattr(batch, defect.column))) for defect in of_sequences]
    anywhere = over_replicas(torch.tensor(found, dtype=torch.int, device=device()), dist.ReduceOp.MAX)
    for defect, is_there in zip([*of_tokens, *of_sequences], anywhere.tolist(), strict=True):
        if is_there:
            raise ValueError(f"{column_file(batch, defect.column)}: {defect.what}")


def check_experts(batch: Batch, model: ModelConfig) -> None:
    """Raises ValueError where there are none to replay, or not as many as the model has choices."""
    file, expected = column_file(batch, "experts"), (len(batch.tokens), sum(model.moe_layers), model.top_k)
    if batch.experts is None:
        raise ValueError(f"{file}: missing, there are no experts to replay; {RECORD}")
    if batch.experts.shape != expected:
        raise ValueError(f"{file}: has {times(batch.experts.shape)} entries for {times(expected)} choices; {RECORD}")


def token_defects(vocab_size: int) -> list[Defect]:
    beyond = f"holds ids beyond the {vocab_size} of the model; sample with the tokenizer of model.init"
    marks = "holds marks other than 0 and 1; " + WENT_WRONG
    first = "marks the first token of a sequence, which nothing predicts; its mask must be 0"
    return [
        Defect("tokens", partial(has_outside, 0, vocab_size), beyond),
        *number_defects("logprobs"),
        *(Defect(name, partial(has_outside, 0, 2), marks) for name in ("loss_mask", "error_mask")),
        Defect("loss_mask", lambda mask: mask[:1].any(), first),
    ]


def expert_defects(num_experts: int) -> list[Defect]:
    beyond = f"holds ids beyond the {num_experts} of the model; {RECORD}"
    return [
        Defect("experts", partial(has_outside, UNKNOWN, num_experts), beyond),
        Defect("experts", is_uneven, f"sends a token to an expert twice, or to too few; {RECORD}"),
    ]


def number_defects(column: str) -> list[Defect]:
    return [
        Defect(column, lambda numbers: np.isnan(numbers).any(), f"holds nan; {WENT_WRONG}"),
        Defect(column, lambda numbers: np.isinf(numbers).any(), f"holds an infinity; {WENT_WRONG}"),
    ]


def has_outside(first: int, end: int, numbers: Column) -> bool:
    return bool(((numbers < first) | (numbers >= end)).any())


def is_uneven(experts: Column) -> bool:
    """Whether some of a token's experts `[..., top_k]` in a layer are known and others not, or two are the same."""
    known, pairs = experts != UNKNOWN, combinations(range(experts.shape[-1]), 2)
    return bool((known.any(-1) != known.all(-1)).any()) or any(
        ((experts[..., one] == experts[..., other]) & known[..., one]).any() for one, other in pairs
    )


def column_file(batch: Batch, column: str) -> str:
    """Where it lies, as far as the batch was read from a directory."""
    file = getattr(batch.tokens, "filename", None)
    return f"{Path(file).parent / column}.bin" if file else f"batch: {column}"


def times(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))
