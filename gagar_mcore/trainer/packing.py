"""Cutting a step's sequences into micro-batches, the same on every rank."""

from collections.abc import Sequence


def plan_microbatches(lengths: Sequence[int], token_budget: int, dp: int) -> list[list[list[int]]]:
    """Which sequences each data-parallel rank runs in each micro-batch: `plan[rank][micro_batch]` holds sequence indices.

    Sequences of like length share a micro-batch, so that a padded block wastes little; one longer than the budget is alone
    in its micro-batch. Every rank gets the same number of micro-batches, the last ones empty where there are too few.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    microbatches: list[list[int]] = []
    room = 0
    for index in order:
        if not microbatches or lengths[index] > room:
            microbatches.append([])
            room = token_budget
        microbatches[-1].append(index)
        room -= lengths[index]
    microbatches += [[] for _ in range(-len(microbatches) % dp)]
    return [microbatches[rank::dp] for rank in range(dp)]
