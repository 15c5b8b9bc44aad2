"""Randomness as a function: every draw follows from the seed and the place where it is used, never from what was drawn before."""

import hashlib
import random

import numpy as np


def derive_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """64-bit seed for (seed, purpose, task, group, member, turn, ...): equal arguments give equal seeds on every machine."""
    text = "\x1f".join([str(seed), purpose, *(f"{type(k).__name__}:{k}" for k in keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def numpy_rng(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, *keys)))


def python_rng(seed: int, purpose: str, *keys: int | str) -> random.Random:
    return random.Random(derive_seed(seed, purpose, *keys))
