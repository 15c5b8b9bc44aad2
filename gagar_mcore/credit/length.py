"""The length penalty of a group, in a form of our own: only its parameters are public.

A passing trajectory gets R_i - X min(1, max(0, len_i / len_p - 1) / (gamma - 1)), len_p the percentile of the passing lengths and
the fraction the largest of turns, input tokens and output tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fractions import Fraction
from math import floor

from gagar_mcore.credit.checks import exact, finite
from gagar_mcore.credit.outcome import Exact, Outcome
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.records.types import Lengths

MEASURES = tuple(field.name for field in fields(Lengths))


def valid_lengths(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Fraction]]:
    """Measure to length by id, of every valid trajectory. Raises ValueError naming trajectory and field."""
    lengths = {outcome.id: getattr(outcome, "lengths", None) for outcome in outcomes if outcome.valid}
    return {measure: {id: _checked(id, measure, of) for id, of in lengths.items()} for measure in MEASURES}


def _checked(id: str, measure: str, lengths: Lengths | None) -> Fraction:
    length = getattr(lengths, measure, None)
    if length is None:
        raise ValueError(f"trajectory {id!r}: {measure} is missing; the length penalty needs {', '.join(MEASURES)}")
    if not finite(length) or length < 0:
        raise ValueError(f"trajectory {id!r}: {measure} must be a finite number of at least 0, got {length!r}")
    return exact(length)


def length_penalties(lengths: Mapping[str, Mapping[str, Fraction]], passing: list[str], params: CreditParams) -> Exact:
    """What each of the `passing` ids that is too long loses; `lengths` is measure to length by id.

    Nothing is taken where the pass rate is not above `length_pass_rate`. A measure whose percentile is 0 takes nothing."""
    valid = len(lengths[MEASURES[0]])
    if len(passing) <= exact(params.length_pass_rate) * valid:
        return {}
    excess = dict.fromkeys(passing, Fraction(0))
    for of in lengths.values():
        reference = percentile([of[id] for id in passing], params.length_percentile)
        if reference > 0:
            excess = {id: max(worst, of[id] / reference - 1) for id, worst in excess.items()}
    weight, ramp = exact(params.length_weight), exact(params.length_gamma) - 1
    return {id: weight * min(Fraction(1), worst / ramp) for id, worst in excess.items() if worst > 0}


def percentile(values: Iterable[Fraction], percent: float) -> Fraction:
    """Linear between the two order statistics around position `percent` / 100 * (n - 1), counted from 0; values not empty."""
    ordered = sorted(values)
    position = exact(percent) / 100 * (len(ordered) - 1)
    below = floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
