"""How the tokens of a batch are weighed against each other: one weight per sequence expresses every aggregation."""

from collections import Counter
from collections.abc import Hashable, Sequence
from numbers import Integral
from typing import Literal

Aggregation = Literal["token-mean", "sequence-mean", "prompt-mean"]


def aggregation_weights(token_counts: Sequence[int], prompts: Sequence[Hashable], how: Aggregation) -> list[float]:
    """The weight `[S]` of each token of each sequence; over all trained tokens the weights sum to 1.

    token_counts `[S]`: trained tokens of each sequence; prompts `[S]`: which prompt each belongs to.
    `token-mean`: 1 / N, N all trained tokens. `sequence-mean`: 1 / (S n_i). `prompt-mean`: 1 / (P sum of n over the prompt).
    A sequence without trained tokens has weight 0 and does not count in S; a prompt of such sequences alone does not count
    in P. Raises ValueError naming the argument."""
    if len(token_counts) != len(prompts):
        raise ValueError(f"prompts: {len(prompts)} given for {len(token_counts)} sequences")
    counts = [_checked_count(n) for n in token_counts]
    return [0.0 if n == 0 else 1.0 / share for n, share in zip(counts, _shares(counts, prompts, how), strict=True)]


def _checked_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise ValueError(f"token_counts: must be whole numbers of at least 0, got {count!r}")
    return int(count)


def _shares(token_counts: Sequence[int], prompts: Sequence[Hashable], how: Aggregation) -> list[int]:
    """The denominator of each sequence's weight, exact."""
    if how == "token-mean":
        return [sum(token_counts)] * len(token_counts)
    if how == "sequence-mean":
        trained = sum(n > 0 for n in token_counts)
        return [trained * n for n in token_counts]
    if how != "prompt-mean":
        raise ValueError(f"how: must be token-mean, sequence-mean or prompt-mean, got {how!r}")
    totals: Counter[Hashable] = Counter()
    for n, prompt in zip(token_counts, prompts, strict=True):
        totals[prompt] += n
    trained = sum(total > 0 for total in totals.values())
    return [trained * totals[prompt] for prompt in prompts]
