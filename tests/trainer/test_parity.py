"""The Megatron model against transformers' MiMo-V2-Flash, and two ranks against one."""

import pytest
import torch
from conftest import random_batch
from transformers import AutoModelForCausalLM
from transformers_gradients import checkpoint_gradients

from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.reference import policy_loss
from gagar_mcore.ops.spec import LossSpec

pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


@pytest.fixture(scope="module")
def computed(on_ranks):
    return on_ranks.layouts


@pytest.fixture(scope="module")
def reference(on_ranks):
    """Logits of each sequence of batch 0 and gradients by name, from transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(on_ranks.checkpoint)
    batch = random_batch(0)
    logits, logprobs = [], []
    for start, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False):
        tokens = torch.tensor(batch.tokens[start:end].astype("int64"))
        logits.append(model(tokens[None]).logits[0])
        picked = logits[-1][:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        logprobs.append(torch.cat([picked, torch.zeros(1)]))
    columns = [torch.tensor(c) for c in (batch.logprobs, batch.loss_mask, batch.advantages, batch.weights)]
    layout = TokenLayout.build(torch.tensor(batch.cu_seqlens))
    loss, _ = policy_loss(torch.cat(logprobs), *columns, layout, LossSpec("mimo", (0.2, 5.0), (0.2, 5.0)))
    loss.backward()
    return logits, loss.item(), checkpoint_gradients(model)


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert {name for name in ours if "e_score_correction_bias" not in name} == {n for n in theirs if "e_score" not in n}
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


def test_logits_equal_those_of_transformers(computed, reference):
    results = computed["1,1,1"]
    order = sorted(range(10), key=lambda i: -len(reference[0][i]))  # one micro-batch, longest sequence first
    ours = [results["logits"][a:b] for a, b in zip(results["bounds"], results["bounds"][1:], strict=False)]

    for expected, logits in zip((reference[0][i] for i in order), ours, strict=True):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_loss_and_gradients_equal_those_of_transformers(computed, reference):
    _, stats, gradients = computed["1,1,1"]["gradients"][0]

    assert stats["loss"] == pytest.approx(reference[1], abs=1e-5)
    assert max(g.abs().max() for g in gradients.values()) > 1e-3
    assert largest_difference(gradients, reference[2]) < 1e-5


def test_the_entropy_is_that_of_the_distributions_the_trained_tokens_were_drawn_from(computed, reference):
    _, stats, _ = computed["1,1,1"]["gradients"][0]
    batch = random_batch(0)
    predicts = torch.cat([torch.tensor(batch.loss_mask[1:]), torch.zeros(1)]).bool()
    logprobs = torch.cat(reference[0])[predicts].log_softmax(-1)

    assert stats["entropy"] == pytest.approx(-(logprobs.exp() * logprobs).sum(-1).mean().item(), abs=1e-5)


def test_reduced_gradients_equal_those_of_one_rank(computed):
    _, stats, gradients = computed["2,2,1"]["gradients"][0]
    _, expected_stats, expected = computed["1,1,1"]["gradients"][0]

    assert stats == pytest.approx(expected_stats, abs=1e-5)
    assert largest_difference(gradients, expected) < 1e-6


@pytest.mark.parametrize("layout", ["1,1,1", "2,2,1"])
def test_the_cut_into_microbatches_changes_nothing(computed, layout):
    (one, stats, gradients), *others = computed[layout]["gradients"]

    assert [one, *(count for count, _, _ in others)] == [1, 2, 5]
    for _, other_stats, other_gradients in others:
        assert other_stats == pytest.approx(stats, rel=1e-6, abs=1e-6)
        assert largest_difference(other_gradients, gradients) < 1e-6


def test_three_optimizer_steps_equal_those_of_one_rank(computed):
    ours, one = computed["2,2,1"], computed["1,1,1"]
    for metrics, expected in zip(ours["metrics"], one["metrics"], strict=True):
        for name in (
            "loss",
            "grad_norm",
            "ratio_mean",
            "ratio_max",
            "rollout_logprob_abs_diff",
            "entropy",
            "tokens",
            "trained_tokens",
        ):
            assert metrics[f"train/{name}"] == pytest.approx(expected[f"train/{name}"], abs=1e-5), name

    assert largest_difference(ours["weights"], one["weights"]) < 1e-5
