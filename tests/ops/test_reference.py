import math

import numpy as np
import pytest
import torch

from gagar_mcore.ops.reference import PolicyStats, policy_loss

LENGTHS = (6, 9, 4, 7, 5)
ALL = tuple(range(len(LENGTHS)))
POSITIVE, NEGATIVE = (0.5, 2.0), (0.8, 1.2)


def columns(seed: int = 0):
    rng = np.random.default_rng(seed)
    total = sum(LENGTHS)
    mask = rng.random(total) < 0.6
    mask[np.cumsum([0, *LENGTHS[:-1]])] = False
    logprobs = -rng.random(total)
    return {
        "logprobs": logprobs,
        "rollout_logprobs": logprobs + 0.6 * rng.standard_normal(total),
        "loss_mask": mask.astype(np.uint8),
        "advantages": np.array([0.7, -0.4, 0.0, -0.9, 0.3]),
        "weights": rng.random(len(LENGTHS)) / 10,
    }


def call(data, sequences=ALL):
    """The loss of some of the sequences, and the leaf it was computed from."""
    bounds = np.cumsum([0, *LENGTHS])
    index = np.concatenate([np.arange(bounds[s], bounds[s + 1]) for s in sequences])
    leaf = torch.tensor(data["logprobs"][index], dtype=torch.float64, requires_grad=True)
    loss, stats = policy_loss(
        leaf,
        torch.tensor(data["rollout_logprobs"][index]),
        torch.tensor(data["loss_mask"][index]),
        torch.tensor(data["advantages"][list(sequences)]),
        torch.tensor(data["weights"][list(sequences)]),
        torch.tensor(np.cumsum([0, *(LENGTHS[s] for s in sequences)])),
        POSITIVE,
        NEGATIVE,
    )
    return loss, stats, leaf, index


def token_by_token(data):
    """Loss and gradient by the formula, one token at a time."""
    loss, gradient = 0.0, np.zeros(sum(LENGTHS))
    token = 0
    for sequence, length in enumerate(LENGTHS):
        for _ in range(length):
            advantage = data["advantages"][sequence]
            ratio = math.exp(data["logprobs"][token] - data["rollout_logprobs"][token])
            low, high = POSITIVE if advantage >= 0 else NEGATIVE
            if data["loss_mask"][token] and low <= ratio <= high:
                gradient[token] = -data["weights"][sequence] * advantage * ratio
                loss += gradient[token] * data["logprobs"][token]
            token += 1
    return loss, gradient


def test_loss_and_gradient_follow_the_formula():
    data = columns()
    loss, _, leaf, _ = call(data)
    loss.backward()
    expected, gradient = token_by_token(data)

    assert loss.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-12)
    assert np.count_nonzero(gradient) < data["loss_mask"].sum()  # the bounds mask some tokens


@pytest.mark.parametrize("cuts", [1, 2, 5])
def test_parts_of_a_batch_add_up_to_the_whole(cuts):
    data = columns()
    whole, whole_stats, leaf, _ = call(data)
    whole.backward()
    total, gradient, stats = 0.0, np.zeros(sum(LENGTHS)), None
    for sequences in np.array_split(np.arange(len(LENGTHS)), cuts):
        loss, part, part_leaf, index = call(data, sequences)
        loss.backward()
        total += loss.item()
        gradient[index] = part_leaf.grad
        stats = part if stats is None else stats.combine(part)

    assert total == pytest.approx(whole.item(), abs=1e-6)
    np.testing.assert_allclose(gradient, leaf.grad, atol=1e-6)
    assert stats.metrics() == pytest.approx(whole_stats.metrics(), abs=1e-6)


def test_metrics_speak_of_trained_tokens():
    data = columns()
    trained = data["loss_mask"].astype(bool)
    difference = (data["logprobs"] - data["rollout_logprobs"])[trained]
    advantage = np.repeat(data["advantages"], LENGTHS)[trained]
    ratio = np.exp(difference)
    low, high = np.where(advantage >= 0, POSITIVE[0], NEGATIVE[0]), np.where(advantage >= 0, POSITIVE[1], NEGATIVE[1])
    loss, stats, _, _ = call(data)

    assert stats.metrics() == pytest.approx(
        {
            "loss": loss.item(),
            "trained_tokens": trained.sum(),
            "masked_share": np.mean((ratio < low) | (ratio > high)),
            "ratio_mean": ratio.mean(),
            "ratio_max": ratio.max(),
            "rollout_logprob_abs_diff": np.abs(difference).mean(),
            "rollout_logprob_max_diff": np.abs(difference).max(),
        }
    )


def test_a_part_without_trained_tokens_is_zero_and_differentiable():
    data = columns()
    data["loss_mask"][:] = 0
    loss, stats, leaf, _ = call(data)
    loss.backward()

    assert loss.item() == 0
    assert not leaf.grad.any()
    assert stats.metrics() == PolicyStats(torch.zeros(5), torch.zeros(2)).metrics()
