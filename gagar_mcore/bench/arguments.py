"""Command-line values of the benchmarks, refused in one line where they make no sense."""

import argparse
import re
from collections.abc import Callable


def positive(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive number")
    return int(text)


def count(text: str) -> int:
    if not re.fullmatch("[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of at least 0")
    return int(text)


def share(text: str) -> float:
    """Between 0 and 1."""
    try:
        if 0 <= (number := float(text)) <= 1:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: must be a number between 0 and 1")


def case_of(form: str) -> Callable[[str], str]:
    """A reader of cases such as `TOKENSxSEQUENCES`: positive numbers, as many as the form has names."""

    def read(text: str) -> str:
        if not re.fullmatch("x".join(["[1-9][0-9]*"] * len(form.split("x"))), text):
            raise argparse.ArgumentTypeError(f"{text!r}: a case is {form}, positive numbers")
        return text

    return read


def device(text: str) -> str:
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    import torch

    if text not in ("auto", "cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be auto, cpu or cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("cuda: no GPU is here; leave the option out to measure the CPU")
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return text
