"""What the trainer's tests share: a random checkpoint, random batches, ranks under torchrun."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.mimo_v2 import preset, to_hf
from gagar_mcore.models.mimo_v2_weights import tensor_shapes
from gagar_mcore.records.batch import Batch
from gagar_mcore.weights.files import write_checkpoint

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def write_tiny_checkpoint(directory: Path) -> None:
    """Random weights of the tiny model, with a selection bias and sinks that matter."""
    tiny = preset("tiny")
    read = random_tensors(tiny, seed=5)
    tensors = {name: read(name) for name in tensor_shapes(tiny)}
    for name, tensor in tensors.items():
        if name.endswith("e_score_correction_bias"):
            tensor += 0.02 * (np.arange(len(tensor)) % 3 - 1)
        if name.endswith("attention_sink_bias"):
            tensor += 1.0
    companions = {"config.json": json.dumps(to_hf(tiny)).encode(), "tokenizer.json": b"{}"}
    write_checkpoint(tensors.items(), companions, directory)


def random_batch(seed: int, sequences: int = 10) -> Batch:
    """Sequences of 3 to 70 tokens, the longest beyond the sliding window; an odd number of tokens in all."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 71, sequences)
    lengths[0] += 1 - lengths.sum() % 2
    bounds = np.cumsum([0, *lengths], dtype=np.int64)
    mask = (rng.random(bounds[-1]) < 0.5).astype(np.uint8)
    mask[bounds[:-1]] = 0
    return Batch(
        tokens=rng.integers(5, 512, bounds[-1]).astype(np.int32),
        logprobs=np.where(mask, -6.2 + 0.2 * rng.standard_normal(bounds[-1]), 0).astype(np.float32),
        loss_mask=mask,
        cu_seqlens=bounds,
        advantages=rng.choice([0.5, -0.5, 0.25], sequences),
        weights=np.full(sequences, 1 / mask.sum()),
        weight_version=np.where(mask, 0, -1).astype(np.int32),
    )


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., None]:
    """Run a script on `count` ranks to its end; a failure shows what they printed."""

    def run(count: int, script: Path, *arguments: str) -> None:
        command = [*TORCHRUN, f"--nproc-per-node={count}", str(script), *arguments]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=170, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    return run
