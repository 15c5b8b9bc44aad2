import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.weights import fp8

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 2**32)


def grid(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Any values, each block of which reaches 448 as a quantised one does, and any positive scales."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # not a number
    codes[::128, ::128] = 0x7E  # 448
    scales = torch.randn(fp8.scale_shape(rows, columns), generator=generator).mul(8).exp2()
    return codes.view(torch.float8_e4m3fn), scales


@settings(max_examples=30)
@given(SIZES, SIZES, SEEDS)
def test_each_value_is_multiplied_by_the_scale_of_its_block(rows, columns, seed):
    values, scales = grid(rows, columns, seed)
    weights = fp8.dequantize(values, scales)

    for place in range(0, rows * columns, 131):
        row, column = divmod(place, columns)
        assert weights[row, column] == values[row, column].float() * scales[row // 128, column // 128]


@settings(max_examples=30)
@given(SIZES, SIZES, SEEDS)
def test_what_lies_on_the_grid_comes_back_to_the_bit(rows, columns, seed):
    values, scales = grid(rows, columns, seed)
    weights = fp8.dequantize(values, scales)

    again = fp8.quantize(weights)
    assert torch.equal(again[0].view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(fp8.dequantize(*again), weights)


@settings(max_examples=30)
@given(SIZES, SIZES, SEEDS)
def test_bfloat16_between_two_quantisations_keeps_every_code(rows, columns, seed):
    values, scales = grid(rows, columns, seed)
    again, near = fp8.quantize(fp8.dequantize(values, scales).bfloat16())

    assert torch.equal(again.float(), values.float())
    torch.testing.assert_close(near, scales, rtol=2**-8, atol=0)


@settings(max_examples=30)
@given(SIZES, SIZES, SEEDS, st.floats(-60, 60))
def test_any_weights_come_back_within_half_a_step(rows, columns, seed, magnitude):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, columns, generator=generator) * 2.0**magnitude
    values, scales = fp8.quantize(weights)

    step = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns] / 1024
    error = (fp8.dequantize(values, scales) - weights).abs()
    assert (error <= torch.maximum(weights.abs() / 16, step) * (1 + 1e-6)).all()
    assert values.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
    assert math.isclose(values.float().abs().max(), 448)


def test_a_block_of_zeros_and_one_of_the_smallest_numbers_stay_finite():
    weights = torch.zeros(256, 130)
    weights[200] = 1e-44

    values, scales = fp8.quantize(weights)
    assert scales.shape == (2, 2)
    assert torch.equal(fp8.dequantize(values, scales), torch.zeros(256, 130))


def test_rows_from_the_middle_of_a_block_take_the_scales_of_their_place():
    values, scales = grid(300, 64, 3)
    whole = fp8.dequantize(values, scales)

    assert torch.equal(fp8.dequantize(values[200:300], scales[1:], first_row=72), whole[200:300])


def test_scales_of_another_matrix_and_numbers_that_are_none_are_refused():
    values, scales = grid(300, 64, 4)
    with pytest.raises(ValueError, match=r"scales \[2, 1\], expected \[3, 1\]"):
        fp8.dequantize(values, scales[:2])
    with pytest.raises(ValueError, match="not finite"):
        fp8.quantize(torch.tensor([[1.0, torch.nan]]))
