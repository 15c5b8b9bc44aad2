import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.models.flops import training_flops
from gagar_mcore.models.presets import preset
from gagar_mcore.trainer.packing import Limits, Packing, plan_microbatches

LENGTHS = st.lists(st.integers(1, 40), max_size=30)
LIMITS = st.builds(
    Limits,
    tokens=st.integers(1, 100),
    dp=st.integers(1, 4),
    cp=st.integers(1, 3),
    tokens_multiple=st.sampled_from([1, 2, 16, 64]),
    multiple=st.integers(1, 3),
)
DP = 8
MODELS = ("tiny", "mimo-v2-flash", "mimo-v2.6-pro", "qwen3-30b-a3b")


def plan(lengths, limits: Limits, model: str = "tiny") -> Packing:
    lengths = np.array(lengths, np.int64)
    return plan_microbatches(lengths, training_flops(preset(model), lengths), limits)


@given(lengths=LENGTHS, limits=LIMITS)
def test_every_sequence_is_planned_once_and_all_ranks_run_as_many_microbatches(lengths, limits):
    microbatches = plan(lengths, limits).microbatches

    assert sorted(i for rank in microbatches for part in rank for i in part) == list(range(len(lengths)))
    assert len(microbatches) == limits.dp
    (count,) = {len(rank) for rank in microbatches}
    assert count and count % limits.multiple == 0


@given(lengths=LENGTHS, limits=LIMITS)
def test_only_a_sequence_alone_exceeds_the_budget(lengths, limits):
    padded = limits.padded(np.array(lengths, np.int64))
    for part in (part for rank in plan(lengths, limits).microbatches for part in rank):
        assert len(part) <= 1 or sum(padded[i] for i in part) <= limits.tokens * limits.cp


@given(lengths=LENGTHS, limits=LIMITS)
def test_the_measures_are_those_of_the_plan(lengths, limits):
    packing = plan(lengths, limits)
    flops = training_flops(preset("tiny"), lengths)
    cost = np.array([[sum(flops[i] for i in part) for part in rank] for rank in packing.microbatches])
    mean = max(cost.sum() / limits.dp, 1.0)
    whole = 2 * limits.cp if limits.cp > 1 else 1
    positions = [sum(-(-lengths[i] // whole) * whole for i in part) for rank in packing.microbatches for part in rank]
    multiple = math.lcm(limits.tokens_multiple, 2 if limits.cp > 1 else 1) * limits.cp
    filled = sum(max(-(-count // multiple), 1) * multiple for count in positions)

    assert packing.flop_imbalance == pytest.approx(cost.sum(1).max() / mean)
    assert packing.lockstep_imbalance == pytest.approx(cost.max(0).sum() / mean)
    assert packing.padding_share == pytest.approx(1 - sum(lengths) / filled)


@pytest.mark.parametrize(("budget", "expected"), [(15, [[1, 2, 0, 3]]), (10, [[1], [2, 0, 3]]), (6, [[1], [2], [0, 3]])])
def test_like_lengths_share_a_microbatch(budget, expected):
    assert plan([3, 6, 4, 2], Limits(budget)).microbatches[0] == expected


def long_tail(name: str, seed: int, longest: int = 65536):
    """512 lengths with a mean of 3,000 to 4,200; the longest are a tenth of a rank's share of the step and more."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(8, 0.8, 512)) if name == "log-normal" else 1000 * (1 + rng.pareto(1.5, 512))
    return np.minimum(lengths, longest).astype(np.int64)


def block_padding(lengths, microbatches) -> float:
    """Share of padding where each micro-batch is a block, every sequence as long as its longest."""
    blocks = sum(len(part) * lengths[part].max() for rank in microbatches for part in rank if part)
    return 1 - lengths.sum() / blocks


def in_given_order(lengths, budget: int) -> list[list[list[int]]]:
    """The plan that fills one micro-batch after another with sequences as they come, and deals them to ranks in turn."""
    parts: list[list[int]] = []
    room = 0
    for index, length in enumerate(lengths):
        if not parts or length > room:
            parts.append([])
            room = budget
        parts[-1].append(index)
        room -= length
    parts += [[]] * (-len(parts) % DP)
    return [parts[rank::DP] for rank in range(DP)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layout", [{}, {"tokens_multiple": 4, "cp": 2, "multiple": 4}], ids=["dp", "tp, cp and interleaved pp"])
def test_a_long_tail_is_balanced_over_ranks_and_hardly_padded(model, seed, layout):
    lengths = long_tail("log-normal", seed)
    packing = plan(lengths, Limits(16384, DP, **layout), model)

    assert packing.flop_imbalance < 1.01
    assert packing.padding_share < 0.01
    assert block_padding(lengths, packing.microbatches) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_power_law_is_balanced_where_no_sequence_exceeds_a_ranks_share(seed):
    lengths = long_tail("pareto", seed, longest=32768)
    for model in MODELS[1:]:
        packing = plan(lengths, Limits(16384, DP), model)
        assert packing.flop_imbalance < 1.01
        assert block_padding(lengths, packing.microbatches) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_is_better_than_the_order_of_arrival(seed):
    lengths, model = long_tail("log-normal", seed), "mimo-v2-flash"
    packing, arrival = plan(lengths, Limits(16384, DP), model), in_given_order(lengths, 16384)
    flops = training_flops(preset(model), lengths)
    busy = np.array([[sum(flops[i] for i in part) for part in rank] for rank in arrival])

    assert packing.flop_imbalance < 1.01 < 1.05 < busy.sum(1).max() / busy.sum(1).mean()
    assert packing.lockstep_imbalance < 1.2 < 1.3 < busy.max(0).sum() / busy.sum(1).mean()
    assert block_padding(lengths, packing.microbatches) < 0.02 < 0.3 < block_padding(lengths, arrival)


def test_a_sequence_longer_than_a_ranks_share_leaves_the_others_balanced():
    packing = plan([100_000, *[500] * 40], Limits(4096, dp=4), "qwen3-30b-a3b")
    (alone,) = [rank for rank in packing.microbatches if [0] in rank]

    assert alone == [[0]] + [[]] * (len(alone) - 1)
    assert sorted(sum(map(len, rank)) for rank in packing.microbatches) == [1, 13, 13, 14]


def test_the_plan_follows_from_lengths_alone():
    lengths = [7] * 20 + [3] * 20
    assert plan(lengths, Limits(16, 2)).microbatches == plan(lengths, Limits(16, 2)).microbatches
