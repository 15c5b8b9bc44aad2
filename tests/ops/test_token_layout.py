import ctypes
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.library import Layout, library

ORDERS = ("zigzag", "contiguous")


def place_by_hand(lengths, cp, rank, order, multiple):
    """The token that each local position predicts, -1 for none, by cutting padded lists."""
    chunks = 2 * cp if order == "zigzag" and cp > 1 else cp
    places, start = [], 0
    for length in lengths:
        padded = -(-length // chunks) * chunks
        while padded % multiple:
            padded += chunks
        nexts = [start + p + 1 if p + 1 < length else -1 for p in range(padded)]
        size = padded // chunks
        parts = [nexts[c * size : (c + 1) * size] for c in range(chunks)]
        places += parts[rank] + parts[chunks - 1 - rank] if chunks == 2 * cp else parts[rank]
        start += length
    return places


lengths_of = st.lists(st.integers(0, 23), max_size=6)


@given(lengths_of, st.sampled_from([1, 2, 3, 4]), st.sampled_from(ORDERS), st.sampled_from([1, 2, 8]), st.integers(0, 5))
def test_the_index_map_cuts_and_shifts_padded_sequences(lengths, cp, order, multiple, filling):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    for rank in range(cp):
        expected = place_by_hand(lengths, cp, rank, order, multiple)
        layout = TokenLayout.build(
            bounds, cp_size=cp, cp_rank=rank, order=order, multiple=multiple, num_local=len(expected) + filling
        )
        assert layout.predicted_tokens().tolist() == expected + [-1] * filling


@given(lengths_of, st.sampled_from([1, 2, 3, 4]), st.sampled_from(ORDERS))
def test_all_ranks_together_predict_every_token_but_the_first_once(lengths, cp, order):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    layouts = [TokenLayout.build(bounds, cp_size=cp, cp_rank=rank, order=order) for rank in range(cp)]
    predicted = sorted(t for layout in layouts for t in layout.predicted_tokens().tolist() if t >= 0)
    starts = {int(bounds[s]) for s in range(len(lengths)) if lengths[s]}
    assert predicted == [t for t in range(sum(lengths)) if t not in starts]


@pytest.mark.parametrize(("cp", "order"), product((1, 4), ORDERS))
def test_index_arithmetic_beyond_32_bits(cp, order):
    """Three sequences of five billion tokens; only their bounds are in memory."""
    compiled = library("cpu")
    if compiled is None:
        pytest.skip("no compiler is here")
    length, local = 5_000_000_000, 5_000_000_000 // cp
    for rank in range(cp):
        layout = TokenLayout.build(torch.arange(4) * length, cp_size=cp, cp_rank=rank, order=order)
        native = Layout(
            layout.cu_seqlens.data_ptr(), layout.cu_local.data_ptr(), 3 * length, 3 * local, 3, cp, rank, layout.halved, 0
        )
        for sequence, offset in product(range(3), (0, 1, local // 2 - 1, local // 2, local - 1)):
            position = rank * local + offset
            if layout.halved:
                chunk = local // 2
                position = rank * chunk + offset if offset < chunk else (2 * cp - 1 - rank) * chunk + offset - chunk
            expected = sequence * length + position + 1 if position + 1 < length else -1
            assert compiled.gagar_predicted_token(ctypes.byref(native), sequence * local + offset) == expected
        assert compiled.gagar_predicted_token(ctypes.byref(native), 3 * local) == -1


@pytest.mark.parametrize(
    ("bounds", "arguments", "message"),
    [
        ([0, 4], {"cp_size": 0}, "cp_size: must be at least 1, got 0"),
        ([0, 4], {"multiple": 0}, "multiple: must be at least 1, got 0"),
        ([], {}, "cu_seqlens: must be .* got nothing"),
    ],
)
def test_a_layout_that_cannot_be_built_is_refused_by_name(bounds, arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenLayout.build(torch.tensor(bounds, dtype=torch.int64), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "ring"}, "order: must be zigzag or contiguous"),
        ({"cp_rank": 2}, "cp_rank: must be from 0 to cp_size - 1 = 1, got 2"),
        ({"cu_seqlens": torch.tensor([0.0, 4.0])}, "cu_seqlens: must be contiguous"),
        ({"cu_local": torch.tensor([0, 2, 2])}, "cu_local: must have the length"),
        ({"cu_local": torch.tensor([0, 3]), "num_local": 3}, "an odd|is odd"),
        ({"num_tokens": 5}, "cu_seqlens: ends at 4, but there are 5 tokens"),
        ({"num_local": 1}, "cu_local: ends at 2, beyond the 1 local positions"),
    ],
)
def test_contradictions_are_refused_by_name(change, message):
    good = {"cu_seqlens": torch.tensor([0, 4]), "cu_local": torch.tensor([0, 2]), "num_tokens": 4, "num_local": 2, "cp_size": 2}
    TokenLayout(**good)
    with pytest.raises(ValueError, match=message):
        TokenLayout(**(good | change))
