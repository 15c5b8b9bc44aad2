"""Rows of packed sequences, as models of transformers take them."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from dense_model import write_dense_checkpoint
from transformers import AutoModelForCausalLM

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.sft.data import SftData
from gagar_mcore.sft.zero_part import row_loss, row_part
from gagar_mcore.trainer.sequences import step_sequences

LENGTHS = (7, 1, 12, 5)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoModelForCausalLM.from_pretrained(write_dense_checkpoint(tmp_path_factory.mktemp("dense") / "model"))


@pytest.fixture
def data() -> SftData:
    """Weights of 0, .5 and 1; the second sequence has but one token, which nothing predicts."""
    rng = np.random.default_rng(5)
    bounds = np.cumsum([0, *LENGTHS])
    weights = rng.choice([0.0, 0.5, 1.0], bounds[-1]).astype(np.float32)
    weights[bounds[:-1]] = 0.0
    return SftData(rng.integers(5, 300, bounds[-1]).astype(np.int32), weights, bounds, np.array([0, len(LENGTHS)]))


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def part_of(data: SftData, indices: list[int]) -> Any:
    return row_part(data, step_sequences(data.bounds(0), TrainerSection(tp=1, ep=1)), data.denominator(0), CPU, indices)


def plain_loss(model: Any, data: SftData) -> torch.Tensor:
    """Every sequence in a pass of its own, all of its logits, no mask but the weights."""
    total = torch.zeros([])
    for first, last in pairwise(data.cu_seqlens):
        ids = torch.tensor(data.tokens[first:last].astype(np.int64))
        logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        total = total - (torch.tensor(data.loss_weights[first + 1 : last]) * logprobs[:-1].gather(1, ids[1:, None])[:, 0]).sum()
    return total / data.denominator(0)


def test_packed_sequences_give_the_loss_and_gradient_of_each_alone(model: Any, data: SftData) -> None:
    loss, expected = row_loss(model, part_of(data, [0, 1, 2, 3])), plain_loss(model, data)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    packed, alone = gradients(model, loss), gradients(model, expected)
    assert max(float((packed[name] - alone[name]).abs().max()) for name in alone) < 1e-6

    parts = sum(row_loss(model, part_of(data, indices)) for indices in ([2], [3, 0], [1]))
    assert parts.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_masked_token_carries_no_gradient_to_its_prediction(model: Any, data: SftData) -> None:
    """Only outputs that predict a token of some weight are made at all; each pulls with its weight."""
    part = part_of(data, [0, 1, 2, 3])
    weighted = np.flatnonzero(data.loss_weights)
    assert part.predicting.tolist() == (weighted - 1).tolist()
    assert part.targets.tolist() == data.tokens[weighted].tolist()

    logits: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        logits.append(output)

    with model.lm_head.register_forward_hook(keep):
        row_loss(model, part).backward()
    assert logits[0].shape[:2] == (1, len(weighted))
    pull = -logits[0].grad[0].gather(1, part.targets[:, None])[:, 0]
    chances = logits[0].detach()[0].softmax(-1).gather(1, part.targets[:, None])[:, 0]
    torch.testing.assert_close(pull, part.weights * (1 - chances))


def test_a_rank_without_sequences_goes_along_with_no_weight(model: Any, data: SftData) -> None:
    loss = row_loss(model, part_of(data, []))
    assert loss.item() == 0.0
    assert all(not gradient.any() for gradient in gradients(model, loss).values())
