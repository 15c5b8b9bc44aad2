"""Attention of sequences cut over ranks against that of whole ones."""

import pytest
import torch
from attention_ranks import CASES, compute_everything, on_one_rank


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return dict(zip(CASES, compute_everything(tmp_path_factory.mktemp("ranks")), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_are_those_of_whole_sequences(computed, case):
    whole = on_one_rank(case)
    assert computed[case].keys() == whole.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(
            computed[case][name], expected, atol=1e-10, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
