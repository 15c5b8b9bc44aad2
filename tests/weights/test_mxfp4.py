import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.weights import mxfp4

ROWS, BLOCKS, SEEDS = st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32)


def test_trap_mxfp4_low_nibble_is_the_even_column_and_the_scale_is_a_biased_power_of_two():
    packed = torch.zeros(2, 32, dtype=torch.uint8)
    packed[0, 0] = 0x2F  # columns 0 and 1: -6 and 1
    packed[0, 15] = 0x71  # columns 30 and 31: 0.5 and 6
    packed[0, 16] = 0xB5  # columns 32 and 33, of the second block: 3 and -1.5
    packed[1, 31] = 0x80  # columns 62 and 63: 0 and -0
    exponents = torch.tensor([[128, 124], [127, 0]], dtype=torch.uint8)  # 2, 1/8; 1, 2^-127

    weights = mxfp4.dequantize(packed, exponents)
    assert weights.shape == (2, 64)
    assert weights[0, [0, 1, 30, 31]].tolist() == [-12.0, 2.0, 1.0, 12.0]
    assert weights[0, [32, 33]].tolist() == [0.375, -0.1875]
    assert weights.count_nonzero() == 6
    assert torch.signbit(weights[1, 63]) and not torch.signbit(weights[1, 62])


def test_every_code_stands_for_its_number():
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] + [0] * 8], dtype=torch.uint8)
    expected = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]

    assert mxfp4.dequantize(packed, torch.tensor([[127]], dtype=torch.uint8))[0, :16].tolist() == expected


@settings(max_examples=50)
@given(ROWS, BLOCKS, SEEDS)
def test_what_lies_on_the_grid_comes_back_to_the_bit(rows, blocks, seed):
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, blocks * 16), generator=generator, dtype=torch.uint8)
    exponents = torch.randint(20, 250, (rows, blocks), generator=generator, dtype=torch.uint8)
    weights = mxfp4.dequantize(packed, exponents)

    again = mxfp4.dequantize(*mxfp4.quantize(weights))
    assert torch.equal(again.view(torch.int32), weights.view(torch.int32))  # the sign of a zero too
    assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(weights.bfloat16())), weights)


@settings(max_examples=50)
@given(ROWS, BLOCKS, SEEDS, st.floats(-60, 60))
def test_no_entry_is_off_by_more_than_a_fifth_of_the_largest_of_its_block(rows, blocks, seed, magnitude):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, blocks * 32, generator=generator) * 2.0**magnitude

    error = (mxfp4.dequantize(*mxfp4.quantize(weights)) - weights).abs().view(rows, blocks, 32)
    largest = weights.abs().view(rows, blocks, 32).amax(-1, keepdim=True)
    assert (error <= largest / 5 * (1 + 1e-6)).all()


def test_numbers_between_two_codes_go_to_the_nearer_and_ties_to_the_even_one():
    entries = [6.0, 0.24, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, -2.5, -0.75]
    weights = torch.tensor([entries + [0.0] * 19])

    expected = [6, 0, 0, 0.5, 1, 1, 2, 2, 4, 4, 6, -2, -1]
    assert mxfp4.dequantize(*mxfp4.quantize(weights))[0, :13].tolist() == expected


def test_what_the_format_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="48 columns are no multiple of 32"):
        mxfp4.quantize(torch.zeros(2, 48))
    with pytest.raises(ValueError, match="not finite"):
        mxfp4.quantize(torch.full((1, 32), torch.inf))
    with pytest.raises(ValueError, match=r"scales \[1, 2\]"):
        mxfp4.dequantize(torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="255"):
        mxfp4.dequantize(torch.zeros(1, 16, dtype=torch.uint8), torch.full((1, 1), 255, dtype=torch.uint8))
