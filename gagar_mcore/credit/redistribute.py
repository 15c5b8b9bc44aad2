"""Moving advantage from sloppy to clean passes without changing its total."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gagar_mcore.credit.checks import exact
from gagar_mcore.credit.outcome import Exact

ONE, ZERO = Fraction(1), Fraction(0)


@dataclass(frozen=True, slots=True)
class Redistribution:
    """What was done to the outcome advantages: A'_i = lambda_b f_i A_i - centre where `scaled` holds i, else A_i - centre.

    lam: lambda before the cap. bounded: lambda_b, after it. centre: what re-centring took from every trajectory."""

    lam: Fraction
    bounded: Fraction
    scaled: Exact  # id -> lambda_b f_i
    centre: Fraction
    advantages: Exact

    @property
    def capped(self) -> bool:
        return self.bounded < self.lam


def redistribute(advantages: Mapping[str, Fraction], factors: Mapping[str, Fraction], cap: float | None) -> Redistribution:
    """Sum-preserving redistribution over the passing ids, those of `factors`.

    With a_i = max(A_i, 0): lambda = sum(a) / sum(f a), B_i = min(lambda, cap) f_i a_i; everything else keeps A_i, and so does a
    passing trajectory below the mean, where the reported form has 0 and loses the zero sum. Where the cap bites the total is no
    longer kept, and the group is re-centred: A'_i = B_i - mean(B). Without a positive part nothing moves (lambda 1)."""
    gains = _gains(advantages, factors)
    if not gains:
        return untouched(advantages)
    lam = sum(gains.values(), ZERO) / sum((factors[id] * gain for id, gain in gains.items()), ZERO)
    bounded = lam if cap is None else min(lam, exact(cap))
    scaled = {id: bounded * factors[id] for id in gains}
    moved = _scale(advantages, scaled)
    centre = sum(moved.values(), ZERO) / len(moved) if bounded < lam else ZERO
    return Redistribution(lam, bounded, scaled, centre, {id: value - centre for id, value in moved.items()})


def downweight(advantages: Mapping[str, Fraction], factors: Mapping[str, Fraction]) -> Redistribution:
    """B_i = f_i A_i on positive advantages of passing ids: the total shrinks. The ablation of the rescaling."""
    scaled = {id: factors[id] for id in _gains(advantages, factors)}
    return Redistribution(ONE, ONE, scaled, ZERO, _scale(advantages, scaled))


def untouched(advantages: Mapping[str, Fraction]) -> Redistribution:
    return Redistribution(ONE, ONE, {}, ZERO, dict(advantages))


def _gains(advantages: Mapping[str, Fraction], factors: Mapping[str, Fraction]) -> Exact:
    return {id: advantages[id] for id in factors if advantages[id] > 0}


def _scale(advantages: Mapping[str, Fraction], scaled: Mapping[str, Fraction]) -> Exact:
    return {id: advantage * scaled.get(id, 1) for id, advantage in advantages.items()}
