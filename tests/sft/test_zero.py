"""ZeRO on two ranks over gloo, beside one process of plain PyTorch that knows nothing of packing, shards or masks on disk."""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_model import write_conversations, write_dense_checkpoint
from killing import run_killed

from gagar_mcore.config.sft import SftSection
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_manifest
from gagar_mcore.sft.data import read_sft_data
from gagar_mcore.sft.run import run_sft
from gagar_mcore.sft.schedule import learning_rate
from gagar_mcore.tracking.metrics import read_metrics

PYTHON = Path(__file__).parents[2] / ".venv-deepspeed" / "bin" / "python"
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.deepspeed,
    pytest.mark.skipif(not PYTHON.is_file(), reason="no .venv-deepspeed; `make deepspeed` makes it"),
]
STEPS, PER_STEP, LR, DECAY, CLIP = 6, 5, 2e-3, 0.1, 1.0
RECIPE = f"""
name: dense
output: OUTPUT
model: {{init: MODEL}}
trainer: {{tp: 1, ep: 1, dp: 2, tokens_per_microbatch: 150, optimizer: {{eps: 1e-6, clip_grad: {CLIP}}}}}
sft:
  backend: deepspeed
  deepspeed: {{python: {PYTHON}}}
  data: [TRAIN]
  heldout: [HELDOUT]
  steps: {STEPS}
  sequences_per_step: {PER_STEP}
  checkpoint_every: 2
  eval_every: 4
  max_new_tokens: 4
  lr: {LR}
  warmup_steps: 2
  weight_decay: {DECAY}
tracking: {{wandb: "off"}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zero")
    model = write_dense_checkpoint(root / "model")
    train, heldout = write_conversations(root / "train.jsonl", 13), write_conversations(root / "heldout.jsonl", 4, first=50)
    text = RECIPE.replace("MODEL", str(model)).replace("TRAIN", str(train)).replace("HELDOUT", str(heldout))
    (root / "recipe.yaml").write_text(text.replace("OUTPUT", str(root / "none")))
    return root


@pytest.fixture(scope="module")
def whole(root: Path) -> RunLayout:
    """Stage 2, never interrupted; what was evaluated is in its metrics."""

    async def size(checkpoint: Path, step: int) -> Mapping[str, float]:
        read_manifest(checkpoint, "weights", verify=True)
        return {"files": len(list(checkpoint.glob("*.safetensors"))), "step": step}

    run_sft(str(root / "recipe.yaml"), [f"output={root / 'whole'}", "sft.heldout_answers=2"], evaluations=[size])
    return RunLayout(root / "whole")


@pytest.fixture(scope="module")
def plain(root: Path, whole: RunLayout) -> tuple[list[float], list[float], float, dict[str, Any]]:
    """Losses, gradient norms, held-out loss after the last step, and final weights."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(root / "model", dtype=torch.float32)
    groups = [[p for p in model.parameters() if (p.dim() > 1) == decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": DECAY}, {"params": groups[1], "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-6
    )
    data, section = read_sft_data(whole.root / "data"), SftSection(lr=LR, warmup_steps=2, steps=STEPS)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(section, step + 1, STEPS)
        optimizer.zero_grad()
        loss = plain_loss(model, data, data.bounds(step))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        losses.append(loss.item())
    heldout = read_sft_data(whole.root / "heldout")
    return losses, norms, plain_loss(model, heldout, heldout.cu_seqlens).item(), dict(model.state_dict())


def plain_loss(model: Any, data: Any, bounds: np.ndarray) -> Any:
    import torch

    total, weight = torch.zeros([]), 0.0
    for first, last in pairwise(bounds):
        ids = torch.tensor(np.array(data.tokens[first:last]), dtype=torch.int64)
        weights = torch.tensor(np.array(data.loss_weights[first + 1 : last]))
        logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], dim=-1)
        total = total - (weights * logprobs[torch.arange(len(ids) - 1), ids[1:]]).sum()
        weight += float(weights.sum())
    return total / weight


def assert_as_plain(layout: RunLayout, plain: tuple[list[float], list[float], float, dict[str, Any]]) -> None:
    losses, norms, heldout, weights = plain
    metrics = read_metrics(layout.metrics)
    assert [m["step"] for m in metrics] == list(range(1, STEPS + 1))
    assert [m["sft/loss"] for m in metrics] == pytest.approx(losses, rel=1e-4)
    assert [m["sft/grad_norm"] for m in metrics] == pytest.approx(norms, rel=1e-3)
    assert metrics[-1]["sft/heldout_loss"] == pytest.approx(heldout, rel=1e-4)
    assert losses[-1] < losses[0]
    trained = final_weights(layout)
    for name, expected in weights.items():
        if name in trained:
            assert (trained[name] - expected).abs().max() < 1e-4, name
    assert weights.keys() - trained.keys() <= {"lm_head.weight"}  # tied to the embedding


def final_weights(layout: RunLayout) -> dict[str, Any]:
    from safetensors.torch import load_file

    [file] = (layout.root / "checkpoint").glob("*.safetensors")
    return load_file(file)


def test_stage_2_on_two_ranks_computes_what_one_plain_process_does(whole: RunLayout, plain: Any) -> None:
    assert_as_plain(whole, plain)


def test_stage_3_with_all_that_can_be_on_the_host_computes_the_same(root: Path, whole: RunLayout, plain: Any) -> None:
    changes = ["sft.deepspeed.stage=3", "sft.deepspeed.offload_weights=true", "trainer.offload_optimizer=true"]
    run_sft(str(root / "recipe.yaml"), [f"output={root / 'sharded'}", "trainer.recompute=full", *changes])
    assert_as_plain(RunLayout(root / "sharded"), plain)


def test_killed_and_resumed_it_comes_to_the_same_bits(root: Path, whole: RunLayout) -> None:
    changes = [f"output={root / 'killed'}"]
    layout = RunLayout(run_killed(root / "recipe.yaml", changes, before=3))
    assert not (layout.root / "checkpoint").exists()
    run_sft(str(root / "recipe.yaml"), changes, resume=True)

    once, again = final_weights(whole), final_weights(layout)
    assert once.keys() == again.keys()
    assert all((once[name] == again[name]).all() for name in once)
    assert [m["sft/loss"] for m in read_metrics(layout.metrics)] == [m["sft/loss"] for m in read_metrics(whole.metrics)]
    assert len(list((layout.root / "checkpoints").glob("0-*/manifest.json"))) == 2


def test_what_is_measured_is_logged_with_its_step_and_the_checkpoint_is_complete(whole: RunLayout) -> None:
    metrics = {int(m["step"]): m for m in read_metrics(whole.metrics)}
    assert [step for step, m in metrics.items() if "sft/heldout_loss" in m] == [4, 6]
    assert [(m["eval/step"], m["eval/files"]) for m in metrics.values() if "eval/step" in m] == [(4, 1), (6, 1)]
    assert all(math.isfinite(m["sft/tokens_per_second"]) for m in metrics.values())
    rates = json.loads((whole.root / "evaluation.json").read_text())
    assert (rates["files"], rates["step"]) == (1, 6) and 0 <= rates["answers_equal"] <= 1
    assert (whole.root / "checkpoint" / "tokenizer.json").is_file()
