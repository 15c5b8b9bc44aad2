"""MXFP4 weights: two e2m1 numbers a byte, the low four bits those of the even column, and for every 32 columns of a row one
scale `2^(e - 127)` stored as the byte e (OCP Microscaling Formats v1.0)."""

from itertools import pairwise

import torch
from torch import Tensor

BLOCK = 32
BIAS = 127
NOT_A_NUMBER = 255
LARGEST = 6.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the low three bits; the fourth is the sign


def packed_shape(rows: int, columns: int) -> tuple[int, int]:
    return rows, columns // 2


def scale_shape(rows: int, columns: int) -> tuple[int, int]:
    return rows, columns // BLOCK


def dequantize(packed: Tensor, exponents: Tensor) -> Tensor:
    """`[R, C]` float32 from packed `[R, C / 2]` uint8 and exponents `[R, C / 32]` uint8, exactly. Raises ValueError for other
    shapes and for an exponent of 255, which stands for no number."""
    rows, columns = packed.shape[0], packed.shape[1] * 2
    if columns % BLOCK or tuple(exponents.shape) != scale_shape(rows, columns):
        raise ValueError(f"scales {list(exponents.shape)}, expected {[rows, columns / BLOCK]} for {rows} x {columns} values")
    if bool((exponents == NOT_A_NUMBER).any()):
        raise ValueError("a scale is 255, which stands for no number")
    values = _byte_values(packed.device)[packed.int()].view(rows, -1, BLOCK)
    return (values * _power_of_two(exponents)[..., None]).view(rows, columns)


def quantize(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Packed values `[R, C / 2]` and exponents `[R, C / 32]`, both uint8, of `weights` `[R, C]`. A block's scale is the smallest
    under which none of its entries exceeds 6, so what `dequantize` gave comes back exactly, and no entry is off by more than a
    fifth of its block's largest. Raises ValueError where 32 does not divide the columns or an entry is not finite."""
    rows, columns = weights.shape
    if columns % BLOCK:
        raise ValueError(f"{columns} columns are no multiple of {BLOCK}")
    blocked = weights.float().view(rows, -1, BLOCK)
    largest = blocked.abs().amax(-1)
    if not bool(largest.isfinite().all()):
        raise ValueError("an entry is not finite")
    exponents = _smallest_exponents(largest)
    codes = _nearest_codes(blocked / _power_of_two(exponents)[..., None]).view(rows, -1, 2)
    return codes[..., 0] | codes[..., 1] << 4, exponents


def _smallest_exponents(largest: Tensor) -> Tensor:
    """Biased e with `largest <= 6 * 2^(e - 127)`; 6 is 0.75 * 2^3."""
    mantissa, exponent = torch.frexp(largest)
    smallest = exponent - 3 + (mantissa > 0.75)
    return torch.where(largest > 0, smallest + BIAS, BIAS).clamp(0, NOT_A_NUMBER - 1).to(torch.uint8)


def _nearest_codes(scaled: Tensor) -> Tensor:
    """The four bits of the nearest e2m1 number, of the even one where two are equally near."""
    middles = torch.tensor([(a + b) / 2 for a, b in pairwise(MAGNITUDES)], device=scaled.device)
    middles[1::2] = middles[1::2].nextafter(torch.zeros_like(middles[1::2]))  # there the upper neighbour is the even one
    return torch.bucketize(scaled.abs(), middles).to(torch.uint8) | torch.signbit(scaled).to(torch.uint8) << 3


def _power_of_two(exponents: Tensor) -> Tensor:
    """`2^(e - 127)` float32 by its bits, exact down to the subnormal one of e = 0."""
    bits = torch.where(exponents == 0, 1 << 22, exponents.int() << 23)
    return bits.to(torch.int32).view(torch.float32)


def _byte_values(device: torch.device) -> Tensor:
    """`[256, 2]`: both numbers of every byte."""
    values = torch.tensor([*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)], device=device)
    byte = torch.arange(256, device=device)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=-1)
