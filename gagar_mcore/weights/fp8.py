"""FP8 weights as published: e4m3 values, and one float32 scale for every block of 128 x 128 of them."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 128
DTYPE = torch.float8_e4m3fn
LARGEST = 448.0  # that e4m3 holds
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # below it a quotient loses its precision


def blocks(size: int) -> int:
    """How many blocks cover `size` rows or columns; the last one may be ragged."""
    return -(-size // BLOCK)


def scale_shape(rows: int, columns: int) -> tuple[int, int]:
    return blocks(rows), blocks(columns)


def dequantize(values: Tensor, scales: Tensor, first_row: int = 0) -> Tensor:
    """Each value times the scale of its block, `[R, C]` float32.

    values `[R, C]` e4m3; scales `[blocks(first_row + R), blocks(C)]` float32, of which `first_row` rows belong to values that
    were not read. Raises ValueError where the scales are not those of such a matrix."""
    rows, columns = values.shape
    expected = scale_shape(first_row + rows, columns)
    if tuple(scales.shape) != expected:
        raise ValueError(f"scales {list(scales.shape)}, expected {list(expected)} for {rows} x {columns} values")
    by_row = scales.float().repeat_interleave(BLOCK, 0)[first_row : first_row + rows]
    return values.float() * by_row.repeat_interleave(BLOCK, 1)[:, :columns]


def quantize(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Values `[R, C]` e4m3 and scales `[blocks(R), blocks(C)]` float32 of `weights` `[R, C]`; the largest entry of a block
    becomes 448. What `dequantize` gave from blocks that reach 448 comes back to the bit. Any other entry w of a block with
    scale s comes back within half the distance of neighbouring values, `max(|w| / 16, s / 1024)`. Raises ValueError for one
    that is not finite."""
    rows, columns = weights.shape
    tall, wide = scale_shape(rows, columns)
    padded = pad(weights.float(), (0, wide * BLOCK - columns, 0, tall * BLOCK - rows)).view(tall, BLOCK, wide, BLOCK)
    largest = padded.abs().amax((1, 3))
    if not bool(largest.isfinite().all()):
        raise ValueError("an entry is not finite")
    scales = _fitting_scales(padded, largest)
    values = _round(padded, scales).view(tall * BLOCK, wide * BLOCK)[:rows, :columns]
    return values.contiguous(), scales


def _fitting_scales(padded: Tensor, largest: Tensor) -> Tensor:
    """Division does not undo multiplication in float32: a block that lies on a grid may have been made with a neighbour of the
    quotient, which is then the scale to take."""
    quotient = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest)).clamp(min=SMALLEST_SCALE)
    scales = quotient
    for candidate in (*(quotient.nextafter(torch.tensor(side)) for side in (0.0, torch.inf)), quotient):
        exact = (_round(padded, candidate).float() * _spread(candidate) == padded).all(3).all(1)
        scales = torch.where(exact, candidate, scales)
    return scales


def _round(padded: Tensor, scales: Tensor) -> Tensor:
    return (padded / _spread(scales)).clamp(-LARGEST, LARGEST).to(DTYPE)


def _spread(scales: Tensor) -> Tensor:
    return scales[:, None, :, None]
