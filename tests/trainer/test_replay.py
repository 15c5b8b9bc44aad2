"""Experts that the engine recorded, replayed by the trainer, in fp32.

Between engine and trainer a router's scores differ by about 1e-7; where two experts score as alike as that, their choices may
differ: about one choice in a million."""

import numpy as np
import pytest
from rank_checks import COUNTED
from sampled_batches import ROWS, SESSIONS

from gagar_mcore.records.columns import open_columns
from gagar_mcore.records.experts import UNKNOWN

pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


def logprob_difference(on_ranks, *case: str) -> float:
    return on_ranks.layouts["replay"][case]["train/rollout_logprob_abs_diff"]


def test_routers_with_the_same_weights_choose_what_the_engine_recorded(on_ranks):
    """Over sessions of several turns, some of which lost their cache on the way; one token of each was never read."""
    assert ROWS < SESSIONS
    columns = open_columns(on_ranks.root / "sampled")
    unknown = (columns["experts"] == UNKNOWN).all(axis=(1, 2))
    ends = columns["cu_seqlens"][1:]
    assert np.flatnonzero(unknown).tolist() == (ends - 1).tolist()
    assert on_ranks.layouts["replay"]["replay", "same"]["train/router_agreement"] > 0.999
    assert "train/router_agreement" not in on_ranks.layouts["replay"]["free", "same"]


def test_replay_brings_the_rollouts_logprobs_where_routers_choose_otherwise(on_ranks):
    assert on_ranks.layouts["replay"]["replay", "biased"]["train/router_agreement"] < 0.8
    assert logprob_difference(on_ranks, "free", "biased") > 1e-3
    assert logprob_difference(on_ranks, "replay", "biased") < 1e-6


def test_agreement_counts_the_choices_of_training_alone(on_ranks):
    plain, *others = (on_ranks.layouts["replay"][case] for case in (("replay", "biased"), *COUNTED))
    assert len(others) == 2
    for metrics in others:
        assert "train/ref_kl" in metrics  # of a reference without bias, whose routers agree with the engine's
        assert metrics["train/router_agreement"] == plain["train/router_agreement"]


def test_replay_takes_nothing_from_routers_that_choose_the_same(on_ranks):
    assert logprob_difference(on_ranks, "replay", "same") <= 1.01 * logprob_difference(on_ranks, "free", "same") < 1e-6
