"""Weights that are no numbers end the step on every rank, and go nowhere."""

import pytest


@pytest.mark.timeout(600)  # the first test starts the ranks
def test_a_weight_of_one_rank_that_is_no_number_is_named_on_all_and_goes_nowhere(on_ranks):
    faulty = on_ranks.layouts["bit flip"]
    first, last = faulty["said"]

    assert first == last
    assert first.startswith("model.layers.2.mlp.experts.5.down_proj.weight: not finite after the update")
    assert faulty["left"] == ["0-000000", "000001", "batch"]
