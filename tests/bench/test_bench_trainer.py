import numpy as np
import pytest

from gagar_mcore.bench.trainer import Contender, ratios, run
from gagar_mcore.bench.trainer_step import lengths, padded_batches, sizes


def test_a_contender_is_measured_and_profiled():
    contender = Contender("gagar", "ragged", "dp2", steps=1, profile=True)
    figures = run([contender], None)["gagar dp2 ragged"]

    assert figures["tokens"] == lengths("ragged").sum()
    assert figures["tokens_per_second"] == pytest.approx(figures["tokens"] / figures["seconds"])
    assert figures["padding_share"] < 0.05 and 1.0 < figures["flop_imbalance"] <= 1.1
    assert len(figures["costs"]) == 3 and 0 < figures["costs"][0]["share"] < 1


def test_padded_batches_hold_every_token_once_within_the_budget():
    drawn = [np.arange(1, length + 1, dtype=np.int32) for length in (5, 9, 2, 30, 4)]
    batches = padded_batches(drawn, 20)

    assert sum(int(mask.sum()) for _, mask in batches) == 50
    assert [tuple(ids.shape) for ids, _ in batches] == [(2, 9), (1, 2), (1, 30), (1, 4)]
    assert all(ids[mask == 0].eq(0).all() for ids, mask in batches)


def test_claims_are_made_of_what_was_measured():
    best = {name: {"tokens_per_second": speed} for name, speed in {"gagar even": 3.0, "transformers even": 2.0}.items()}
    assert list(ratios(best).values()) == [1.5]


def test_layouts_are_read_as_sizes():
    assert sizes("tp2 ep4") == {"tp": 2, "ep": 4} and sizes("") == {}
