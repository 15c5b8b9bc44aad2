"""What the trainer's tests share: a random checkpoint, random batches, ranks under torchrun."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored import write_plain, write_stored

from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.batch import Batch, write_columns
from gagar_mcore.records.epochs import open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import publish_directory
from gagar_mcore.sft.data import KIND, SftData, write_sft_data
from gagar_mcore.weights.files import read_companions
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
STEPS = 4
RECIPE = f"""
name: restart
output: unused
model: {{init: unused}}
engine: {{kind: sglang, server: {{update: delta}}}}
trainer: {{optimizer: {{lr: 1.0e-3, warmup_steps: 2}}, tokens_per_microbatch: 220}}
train: {{steps: {STEPS}, checkpoint_every: 2}}
"""


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
    write_plain(tensors.items(), companions, directory)


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
        error_mask=(rng.random(bounds[-1]) < 0.2).astype(np.uint8) * mask,
        cu_seqlens=bounds,
        advantages=rng.choice([0.5, -0.5, 0.25], sequences),
        weights=np.full(sequences, 1 / mask.sum()),
        weight_version=np.where(mask, 0, -1).astype(np.int32),
    )


def make_run(root: Path) -> RunLayout:
    """A run directory as a controller leaves it before the first step."""
    layout = RunLayout(root)
    root.mkdir()
    layout.recipe.write_text(RECIPE)
    open_epoch(layout, next_step=1, next_version=0)
    layout.weights(0).parent.mkdir()
    publish_directory(layout.weights(0), "weights", 1, lambda directory: write_tiny_checkpoint(directory) or {})
    return layout


def publish_batches(layout: RunLayout, *steps: int) -> None:
    for step in steps:
        layout.step(step).mkdir(parents=True)
        batch = random_batch(step)
        publish_directory(layout.batch(step), "batch", 1, lambda d, batch=batch: write_columns(batch, d) or {})


SFT_STEPS = 3


def sft_data() -> SftData:
    """Three steps of four sequences; half of the tokens weigh little, one in ten nothing."""
    rng = np.random.default_rng(9)
    bounds = np.cumsum([0, *rng.integers(5, 60, 4 * SFT_STEPS)], dtype=np.int64)
    weights = rng.choice([1.0, 0.2, 0.0], bounds[-1], p=[0.4, 0.5, 0.1]).astype(np.float32)
    weights[bounds[:-1]] = 0
    steps = np.arange(0, 4 * SFT_STEPS + 1, 4)
    return SftData(rng.integers(5, 512, bounds[-1]).astype(np.int32), weights, bounds, steps)


@dataclass(frozen=True)
class OnRanks:
    """root: `sft-N` holds what fine-tuning on N ranks gave. checkpoint: the random weights; layouts: what each layout computed
    from them; run: a run trained to its end."""

    root: Path
    checkpoint: Path
    layouts: dict[str, Any]
    run: RunLayout


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory) -> OnRanks:
    from sampled_batches import sampled_batch  # with an engine, which the ranks, who import this file, do without

    root = tmp_path_factory.mktemp("ranks")
    layout = prepare_root(root)
    publish_directory(root / "data", KIND, 0, lambda directory: write_sft_data(sft_data(), directory) or {})
    (root / "sampled").mkdir()
    write_columns(sampled_batch(root / "checkpoint"), root / "sampled")
    source = PublishedCheckpoint(root / "checkpoint")
    fused = Storage(source.model, "fp32", "fused")
    write_stored(fused, source.read, read_companions(root / "checkpoint"), root / "fused", max_bytes=300_000)
    publish_batches(make_run(root / "faulty"), 1)
    run_ranks(1, root, "1,1,1", "sft", "losses", "memory", "replay")
    run_ranks(2, root, "2,2,1", "sft", "train", "losses", "memory", "bit flip", "quantise")
    return computed_on_ranks(root, layout)


def prepare_root(root: Path) -> RunLayout:
    """What every job of the ranks finds: random weights, a place for results, and a run with its batches."""
    for name in ("checkpoint", "layouts"):
        (root / name).mkdir()
    write_tiny_checkpoint(root / "checkpoint")
    layout = make_run(root / "run")
    publish_batches(layout, *range(1, STEPS + 1))
    return layout


def computed_on_ranks(root: Path, layout: RunLayout) -> OnRanks:
    computed = {path.stem: torch.load(path) for path in (root / "layouts").iterdir()}
    return OnRanks(root, root / "checkpoint", computed, layout)


@pytest.fixture(scope="session")
def executed(tmp_path_factory) -> OnRanks:
    """What every way to run a step, and to keep the optimizer's state, computed."""
    root = tmp_path_factory.mktemp("executed")
    layout = prepare_root(root)
    for ranks in (1, 2):
        run_ranks(ranks, root, "execution")
    return computed_on_ranks(root, layout)


def run_ranks(count: int, root: Path, *jobs: str) -> None:
    script = Path(__file__).with_name("rank_checks.py")
    command = [*TORCHRUN, f"--nproc-per-node={count}", str(script), str(root), *jobs]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
