import numpy as np
import pytest
import torch

from gagar_mcore.engine.sampling import sample, uniforms


def test_a_draw_depends_on_its_seed_and_place_alone():
    assert uniforms(7, 5).tolist() == uniforms(7, 50)[:5].tolist()
    assert uniforms(7, 5).tolist() != uniforms(8, 5).tolist()
    assert uniforms(2**64 - 1, 1)[0] < 1


def test_draws_are_uniform():
    draws = np.concatenate([uniforms(seed, 4) for seed in range(5000)])
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    assert counts.min() > 1850 and counts.max() < 2150  # 2000 expected, standard deviation 42


def test_tokens_come_with_the_frequency_and_logprob_of_the_tempered_softmax():
    logits = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    expected = torch.log_softmax(logits[0].double() / 2, dim=-1)
    draws = ((np.arange(4000) + 0.5) / 4000).tolist()
    tokens, logprobs = sample(logits.expand(4000, -1), [2.0] * 4000, draws)
    assert np.bincount(tokens) / 4000 == pytest.approx(expected.exp().numpy(), abs=1 / 4000)
    assert logprobs == pytest.approx([expected[t].item() for t in tokens], abs=1e-12)


def test_greedy_takes_the_largest_logit_whatever_the_draw():
    logits = torch.tensor([[0.0, 3.0, 1.0]]).expand(2, -1)
    tokens, logprobs = sample(logits, [0.0, 0.0], [0.001, 0.999])
    assert tokens == [1, 1]
    assert logprobs == pytest.approx([torch.log_softmax(logits[0].double(), -1)[1].item()] * 2)


def test_temperatures_may_differ_within_a_batch():
    logits = torch.tensor([[0.0, 1.0]]).expand(3, -1)
    alone = [sample(logits[:1], [t], [0.3]) for t in (0.0, 0.5, 1.0)]
    tokens, logprobs = sample(logits, [0.0, 0.5, 1.0], [0.3] * 3)
    assert (tokens, logprobs) == ([t for [t], _ in alone], [p for _, [p] in alone])


def test_the_extreme_draws_stay_within_the_vocabulary_and_off_impossible_tokens():
    logits = torch.tensor([[-1e30, 0.0, 0.0, -1e30]]).expand(2, -1)
    assert sample(logits, [1.0, 1.0], [0.0, 1 - 2**-53])[0] == [1, 2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(bad):
    with pytest.raises(FloatingPointError, match="not finite"):
        sample(torch.tensor([[0.0, bad]]), [1.0], [0.5])
