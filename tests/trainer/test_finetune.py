"""Supervised fine-tuning on one and two ranks, and its loss against transformers."""

import json

import pytest
import torch
from conftest import SFT_STEPS, sft_data
from stored import read_stored
from transformers import AutoModelForCausalLM

from gagar_mcore.records.store import read_manifest
from gagar_mcore.weights.published import PublishedCheckpoint

pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


def metrics(on_ranks, ranks: int) -> list[dict[str, float]]:
    return [json.loads(line) for line in (on_ranks.root / f"sft-{ranks}.jsonl").read_text().splitlines()]


def test_the_loss_is_the_weighted_mean_of_the_negative_log_likelihood(on_ranks):
    model = AutoModelForCausalLM.from_pretrained(on_ranks.checkpoint)
    data = sft_data()
    total = weight = 0.0
    for sequence in range(data.steps[0], data.steps[1]):
        part = slice(data.cu_seqlens[sequence], data.cu_seqlens[sequence + 1])
        tokens = torch.tensor(data.tokens[part].astype("int64"))
        with torch.no_grad():
            logprobs = model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        weights = torch.tensor(data.loss_weights[part])[1:]
        total -= float((weights * logprobs).sum())
        weight += float(weights.sum())

    assert metrics(on_ranks, 1)[0]["sft/loss"] == pytest.approx(total / weight, abs=1e-5)


def test_two_ranks_train_as_one_from_fused_projections_in_several_files(on_ranks):
    one, two = (metrics(on_ranks, ranks) for ranks in (1, 2))
    assert [m["step"] for m in two] == list(range(1, SFT_STEPS + 1))
    for ours, expected in zip(two, one, strict=True):
        assert ours["sft/loss"] == pytest.approx(expected["sft/loss"], abs=1e-5)
        assert ours["sft/grad_norm"] == pytest.approx(expected["sft/grad_norm"], abs=1e-5)

    one, two = (read_stored(on_ranks.root / f"sft-{ranks}") for ranks in (1, 2))
    assert max((one[name] - two[name]).abs().max() for name in one) < 1e-5


def test_router_and_selection_bias_learn_and_the_checkpoint_is_published(on_ranks):
    directory = on_ranks.root / "sft-2"
    before, after = (read_stored(path) for path in (on_ranks.checkpoint, directory))

    assert all(not before[name].equal(after[name]) for name in before)
    of_ranks = {f"model-0000{rank}-of-00002.safetensors" for rank in (1, 2)}
    files = {"config.json", "tokenizer.json", "model.safetensors.index.json", *of_ranks}
    assert set(read_manifest(directory, "weights", verify=True).files) == files
    assert PublishedCheckpoint(directory).check() == set()
