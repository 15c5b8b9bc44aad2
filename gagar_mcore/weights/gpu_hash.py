"""The hash that SGLang 0.5.23 makes of a tensor on a GPU (`gpu_tensor_hash`), on the host: two 32-bit hashes of each word and its
place, added up by tiles, the tiles' sums mixed and added up."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 8192  # words
MASK_32, MASK_64 = (1 << 32) - 1, (1 << 64) - 1
SEED = 0x243F6A88
SEEDS = (SEED, (SEED * 0x9E3779B1 ^ 0xDEADBEEF) & MASK_32)
FACTORS, TURNS = (0x27D4EB2D, 0x165667B1), (15, 13)  # of a word's place
Words = NDArray[np.uint32]


def gpu_hash(tensor: Tensor) -> str:
    content = tensor.contiguous().flatten().view(torch.uint8).numpy()
    words = np.pad(content, (0, -len(content) % 4)).view(np.uint32)
    tiles = [_tile(words[start : start + TILE], start, 4 * len(words)) for start in range(0, len(words), TILE)]
    return f"{_last_mix(sum(tiles) & MASK_64):016x}"


def _tile(words: Words, start: int, nbytes: int) -> int:
    places = np.arange(start, start + len(words), dtype=np.uint32)
    halves = []
    for factor, seed, turn in zip(FACTORS, SEEDS, TURNS, strict=True):
        turned = places << np.uint32(turn) | places >> np.uint32(32 - turn)
        key = np.bitwise_xor(places * np.uint32(factor) + np.uint32(seed), turned)
        mixed = _mix(np.bitwise_xor(words, key))
        total = int(mixed.sum(dtype=np.uint32)) ^ nbytes & MASK_32
        halves.append(int(_mix(np.array([total], np.uint32))[0]))
    return halves[0] << 32 | halves[1]


def _mix(x: Words) -> Words:
    """MurmurHash3's finalizer."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return x ^ x >> np.uint32(16)


def _last_mix(x: int) -> int:
    """SplitMix64's, without its increment."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK_64
    return x ^ x >> 31
