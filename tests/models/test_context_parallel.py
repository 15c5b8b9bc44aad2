"""Attention of sequences cut over ranks against that of whole ones."""

import pytest
import torch
from attention_ranks import BORDER_WINDOW, CASES, compute_everything, on_one_rank


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return compute_everything(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_are_those_of_whole_sequences(computed, case):
    whole = on_one_rank(case)

    assert computed[case].keys() == whole.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(
            computed[case][name], expected, atol=1e-10, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize(("distance", "seen"), [(BORDER_WINDOW - 1, True), (BORDER_WINDOW, False)])
def test_the_window_reaches_over_every_border_of_chunks_and_no_further(computed, cp, distance, seen):
    assert computed[cp, distance] == [seen] * (2 * cp - 1)
