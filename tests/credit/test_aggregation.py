import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.credit import aggregation_weights

HOWS = ["token-mean", "sequence-mean", "prompt-mean"]
SEQUENCES = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 5)), max_size=60)


def test_each_form_by_hand():
    counts, prompts = [3, 5, 0, 2], ["a", "a", "a", "b"]
    assert aggregation_weights(counts, prompts, "token-mean") == [1 / 10, 1 / 10, 0.0, 1 / 10]
    assert aggregation_weights(counts, prompts, "sequence-mean") == [1 / 9, 1 / 15, 0.0, 1 / 6]
    assert aggregation_weights(counts, prompts, "prompt-mean") == [1 / 16, 1 / 16, 0.0, 1 / 4]


@pytest.mark.parametrize("how", HOWS)
def test_nothing_trained_weighs_nothing(how):
    assert aggregation_weights([], [], how) == []
    assert aggregation_weights([0, 0], ["a", "b"], how) == [0.0, 0.0]


@pytest.mark.parametrize("how", HOWS)
@given(sequences=SEQUENCES)
def test_over_all_trained_tokens_the_weights_sum_to_one(how, sequences):
    counts, prompts = [n for n, _ in sequences], [p for _, p in sequences]
    weights = aggregation_weights(counts, prompts, how)
    total = sum((Fraction(w) * n for w, n in zip(weights, counts, strict=True)), Fraction())
    assert abs(total - bool(sum(counts))) <= Fraction(1, 10**12)


@pytest.mark.parametrize("how", HOWS)
@given(sequences=SEQUENCES)
def test_sequences_without_trained_tokens_dilute_nothing(how, sequences):
    kept = [(n, p) for n, p in sequences if n]
    with_empty = aggregation_weights([n for n, _ in sequences], [p for _, p in sequences], how)
    assert [w for w in with_empty if w] == aggregation_weights([n for n, _ in kept], [p for _, p in kept], how)


@given(SEQUENCES)
def test_prompt_mean_gives_every_prompt_the_same_total(sequences):
    weights = aggregation_weights([n for n, _ in sequences], [p for _, p in sequences], "prompt-mean")
    totals: dict[int, list[float]] = {}
    for (n, prompt), weight in zip(sequences, weights, strict=True):
        totals.setdefault(prompt, []).append(n * weight)
    trained = [math.fsum(parts) for parts in totals.values() if any(parts)]
    assert trained == pytest.approx([1 / len(trained)] * len(trained) if trained else [])


@given(SEQUENCES)
def test_sequence_mean_gives_every_sequence_the_same_total(sequences):
    weights = aggregation_weights([n for n, _ in sequences], [p for _, p in sequences], "sequence-mean")
    totals = [n * w for (n, _), w in zip(sequences, weights, strict=True) if n]
    assert totals == pytest.approx([1 / len(totals)] * len(totals) if totals else [])


@pytest.mark.parametrize(
    ("counts", "prompts", "how", "message"),
    [
        ([1], [], "token-mean", "^prompts: 0 given for 1 sequences"),
        ([-1], [0], "token-mean", "^token_counts: "),
        ([1.5], [0], "token-mean", "^token_counts: "),
        ([math.nan], [0], "token-mean", "^token_counts: "),
        ([math.inf], [0], "token-mean", "^token_counts: "),
        ([True], [0], "token-mean", "^token_counts: "),
        ([1], [0], "mean", "^how: must be token-mean, sequence-mean or prompt-mean, got 'mean'"),
    ],
)
def test_bad_input_is_refused_by_name(counts, prompts, how, message):
    with pytest.raises(ValueError, match=message):
        aggregation_weights(counts, prompts, how)
