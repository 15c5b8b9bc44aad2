"""Seeded questions on numbers and words; of some, a program knows the right answers."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from gagar_mcore.randomness import python_rng
from gagar_mcore.tasks.question import Question

_CHECKS = Path(__file__).parent / "checks"
_HELDOUT_ONE_IN = 8
_MAX_DRAWS = 10_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)

Unnamed = Callable[..., Question]


def generate_question(seed: int, index: int, heldout: bool = False) -> Question:
    """Question `index` of `seed`; a pure function of its arguments. Those held back and the others share none, whatever their
    seeds."""
    rng = python_rng(seed, "question", "heldout" if heldout else "training", index)
    kind = _KINDS[index % len(_KINDS)]
    for _ in range(_MAX_DRAWS):
        question = kind(rng)(id=f"{'heldout-question' if heldout else 'question'}-{seed}-{index:05d}")
        if _is_heldout(question) == heldout:
            return question
    raise RuntimeError(f"no question in {_MAX_DRAWS} draws for seed {seed}, index {index}")


def _is_heldout(question: Question) -> bool:
    return hashlib.sha256(question.instruction.encode()).digest()[0] % _HELDOUT_ONE_IN == 0


def _exact(instruction: str, answer: str) -> Unnamed:
    return partial(Question, instruction=instruction, accepted=(answer,))


def _checked(instruction: str, program: str, answer: str, **data: int | str) -> Unnamed:
    check = _CHECKS / f"{program}.py"
    return partial(Question, instruction=instruction, accepted=(answer,), check=check, data=json.dumps(data))


def _sum(rng: Random) -> Unnamed:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    return _exact(f"{a} + {b} = ?", str(a + b))


def _remainder(rng: Random) -> Unnamed:
    a, b = rng.randint(10, 999), rng.randint(3, 12)
    return _exact(f"What is left when {a} is divided by {b}?", str(a % b))


def _reversed(rng: Random) -> Unnamed:
    word = _word(rng, 3, 7)
    return _exact(f"Write {word} backwards.", word[::-1])


def _largest(rng: Random) -> Unnamed:
    numbers = rng.sample(range(1, 1000), rng.randint(3, 6))
    return _exact(f"Which is the largest of {' '.join(map(str, numbers))}?", str(max(numbers)))


def _factors(rng: Random) -> Unnamed:
    a, b = rng.choice(_PRIMES) * rng.randint(1, 9), rng.choice(_PRIMES)
    return _checked(f"Name two whole numbers above 1 whose product is {a * b}.", "factors", f"{a} {b}", product=a * b)


def _anagram(rng: Random) -> Unnamed:
    word = "".join(rng.sample(_LETTERS, rng.randint(3, 6)))
    return _checked(f"Write the letters of {word} in another order.", "anagram", word[::-1], word=word)


def _word(rng: Random, least: int, most: int) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(least, most)))


_KINDS = (_sum, _remainder, _factors, _reversed, _largest, _anagram)
