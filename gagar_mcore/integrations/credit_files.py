"""Where `gagar credit` reads and writes."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from gagar_mcore.config.load import RecipeError, load_method
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.integrations.jsonl_credit import run_credit

STANDARD = "-"
OPTIONS = {"method": "--method", "cap": "--cap", "min_valid": "--min-valid"}
OF_TOKENS = "behaviour shaping works on tokens, in a trainer; gagar credit sees trajectories"
REFUSED = {
    "name": "say it with --method",
    "cap": "say it with --cap",
    "min_valid": "say it with --min-valid",
    **dict.fromkeys(("behaviour_shaping", "kappa", "behaviour_bounds"), OF_TOKENS),
}


def credit_params(method: str, cap: str, min_valid: int, settings: Sequence[str]) -> CreditParams:
    """What `gagar credit` is told; a cap of `none` is no cap, `settings` are further `field=value`. Raises RecipeError."""
    section = load_method(settings)
    for field, mend in REFUSED.items():
        if field in section.model_fields_set:
            raise RecipeError(f"{field}: {mend}")
    try:
        options: dict[str, Any] = {"method": method, "cap": _cap(cap), "min_valid": min_valid}
        return replace(section.params(), **options)
    except ValueError as error:
        field, _, problem = str(error).partition(": ")
        raise RecipeError(f"{OPTIONS.get(field, field)}: {problem}") from error


def _cap(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"cap: must be a finite number of at least 1, or none, got {text!r}") from None


def credit_files(source: str, target: str, params: CreditParams) -> int:
    """`run_credit` from a file to a file, `-` being standard input or output; returns its exit code. Raises OSError, and
    ValueError where both are the same file."""
    if STANDARD not in (source, target) and Path(target).exists() and Path(target).samefile(source):
        raise ValueError(f"--out: {target} is the input itself; write to another file")
    with ExitStack() as stack:
        return run_credit(_reader(source, stack), _writer(target, stack), sys.stderr, params)


def _reader(source: str, stack: ExitStack) -> TextIO:
    if source == STANDARD:
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
        return sys.stdin
    return stack.enter_context(Path(source).open(encoding="utf-8", errors="surrogateescape"))


def _writer(target: str, stack: ExitStack) -> TextIO:
    return sys.stdout if target == STANDARD else stack.enter_context(Path(target).open("w", encoding="utf-8"))
