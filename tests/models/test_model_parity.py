"""Megatron models against transformers where it has them, and against plain PyTorch everywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_cases import CASES, Case
from plain_model import hidden_states, mtp_hidden_states
from stored import write_plain
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers_gradients import checkpoint_gradients

from gagar_mcore.models.huggingface import to_hf

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=0")


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "computed.pt"
    command = [*TORCHRUN, str(Path(__file__).with_name("model_rank.py")), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(out)


def plain(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs as the rank gives them (zeros where multi-token prediction reads beyond a sequence), and gradients."""
    tensors = {name: tensor.requires_grad_() for name, tensor in case.tensors().items()}
    outputs: dict[str, list[Tensor]] = {}
    for tokens, forced in zip(case.sequences, case.experts() or [None] * len(case.sequences), strict=True):
        hidden = hidden_states(case.model, tensors, tokens, forced)
        outputs.setdefault("logits", []).append(hidden @ tensors["lm_head.weight"].T)
        frozen = {name: tensor.detach() if "embed" in name else tensor for name, tensor in tensors.items()}
        for k, guess in enumerate(mtp_hidden_states(case.model, frozen, hidden.detach(), tokens)):
            outputs.setdefault(f"mtp {k}", []).append(
                torch.cat([guess, guess.new_zeros(len(tokens) - len(guess), guess.shape[1])])
            )
    whole = {name: torch.cat(parts) for name, parts in outputs.items()}
    sum((case.probe(name, output) * output).sum() for name, output in whole.items()).backward()
    return whole, {name: t.grad if t.grad is not None else torch.zeros_like(t) for name, t in tensors.items()}


def largest(difference: Tensor, scale: Tensor) -> float:
    return float(difference.abs().max() / scale.abs().max().clamp(min=1e-6))


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_equal_those_of_plain_pytorch(computed, name):
    case = CASES[name]
    outputs, gradients = plain(case)
    for key, expected in outputs.items():
        counted = case.probe(key, expected) != 0
        assert (computed[name]["outputs"][key][counted] - expected[counted]).abs().max() < 1e-4, key
    assert computed[name]["gradients"].keys() == gradients.keys()
    for tensor, expected in gradients.items():
        assert largest(computed[name]["gradients"][tensor] - expected, expected) < 1e-4, tensor


@pytest.mark.parametrize("name", ["flash", "qwen3"])
def test_outputs_and_gradients_equal_those_of_transformers(computed, name, tmp_path):
    case = CASES[name]
    write_plain(case.tensors().items(), {"config.json": json.dumps(to_hf(case.model)).encode()}, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    logits = torch.cat([model(tokens[None]).logits[0] for tokens in case.sequences])
    (case.probe("logits", logits) * logits).sum().backward()

    assert (computed[name]["outputs"]["logits"] - logits).abs().max() < 1e-4
    gradients, own = computed[name]["gradients"], checkpoint_gradients(model)
    assert {tensor for tensor in gradients if "e_score_correction_bias" not in tensor} == own.keys()
    for tensor, expected in own.items():
        assert largest(gradients[tensor] - expected, expected) < 1e-4, tensor


def test_one_more_key_is_seen_where_the_window_is_counted_before_the_query(computed):
    """The two readings differ where a sequence is longer than the window."""
    case = CASES["window before self"]
    other = Case(
        model=type(case.model)(**{f: getattr(case.model, f) for f in case.model.__slots__} | {"window_includes_self": True})
    )
    ours, theirs = computed["window before self"]["outputs"]["logits"], plain(other)[0]["logits"]
    window = case.model.sliding_window
    assert (ours[:window] - theirs[:window]).abs().max() < 1e-4
    assert (ours[window:70] - theirs[window:70]).abs().max() > 1e-3
