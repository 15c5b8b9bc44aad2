"""`gagar sft` on Megatron, from nothing to a measured checkpoint."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_model import write_conversations
from killing import run_killed

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.shipped import shipped_recipe
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.models.presets import preset
from gagar_mcore.records.store import read_manifest
from gagar_mcore.sft.data import SftData, read_sft_data
from gagar_mcore.sft.run import run_sft
from gagar_mcore.tracking.metrics import read_metrics

SMALL = ["sft.steps=3", "sft.sequences_per_step=4", "tasks.heldout_count=2", "train.eval_samples=2"]


@pytest.mark.timeout(600)
def test_the_cold_start_goes_from_nothing_to_a_measured_checkpoint(tmp_path: Path) -> None:
    heldout = write_conversations(tmp_path / "heldout.jsonl", 6)
    overrides = [f"output={tmp_path / 'run'}", f"sft.heldout=[{heldout}]", *SMALL]
    command = [sys.executable, "-m", "gagar_mcore.cli", "sft", "tiny-sft", *overrides]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    checkpoint = tmp_path / "run" / "checkpoint"
    read_manifest(checkpoint, "weights", verify=True)
    assert read_config(checkpoint) == preset("tiny")
    assert load_renderer(checkpoint).vocab_size == preset("tiny").vocab_size
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [s["step"] for s in steps] == [1, 2, 3]
    assert all(s["sft/loss"] > 0 for s in steps)
    assert steps[-1]["eval/sessions"] == 4
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["sessions"] == 4
    expected = plain_loss(checkpoint, read_sft_data(tmp_path / "run" / "heldout"))
    assert steps[-1]["sft/heldout_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.kills
@pytest.mark.timeout(600)
def test_killed_and_resumed_it_comes_to_the_same_bits(tmp_path: Path) -> None:
    recipe, train = shipped_recipe("tiny-sft"), write_conversations(tmp_path / "train.jsonl", 9)
    assert recipe is not None
    changes = [
        "model.init=tiny-mimo-v2",
        "sft.steps=5",
        "sft.sequences_per_step=4",
        "sft.checkpoint_every=2",
        "tracking.wandb=off",
    ]
    changes += [f"sft.data=[{train}]", "trainer.async_checkpoint=false"]  # what is saved before the kill is there after it
    run_sft(str(recipe), [f"output={tmp_path / 'whole'}", *changes])
    killed = run_killed(recipe, [f"output={tmp_path / 'killed'}", *changes], before=3)
    assert (killed / "checkpoints" / "0-000002").is_dir() and not (killed / "checkpoint").exists()
    run_sft(str(recipe), [f"output={killed}", *changes], resume=True)

    digests = [read_manifest(run / "checkpoint", "weights", verify=True).digest for run in (tmp_path / "whole", killed)]
    assert digests[0] == digests[1]
    losses = [[m["sft/loss"] for m in read_metrics(run / "metrics.jsonl")] for run in (tmp_path / "whole", killed)]
    assert losses[0] == losses[1] and len(losses[0]) == 5


def plain_loss(checkpoint: Path, data: SftData) -> float:
    """By transformers, each sequence in a pass of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint)
    total = 0.0
    for first, last in pairwise(data.cu_seqlens):
        ids = torch.tensor(np.array(data.tokens[first:last]), dtype=torch.int64)
        with torch.no_grad():
            logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        total -= float((torch.tensor(np.array(data.loss_weights[first + 1 : last])) * logprobs).sum())
    return total / float(data.loss_weights.sum())
