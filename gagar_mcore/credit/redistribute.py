"""Moving advantage from sloppy to clean passes without changing its total."""

import math
import sys
from collections.abc import Mapping


def redistribute(
    advantages: Mapping[str, float], factors: Mapping[str, float], cap: float | None
) -> tuple[dict[str, float], float, bool]:
    """Sum-preserving redistribution over the passing ids, those of `factors`: (advantages, lambda after the cap, capped).

    With a_i = max(A_i, 0): lambda = sum(a) / sum(f a), B_i = min(lambda, cap) f_i a_i; everything else keeps A_i, and so does
    the negative part of a passing trajectory below the mean. Where the cap bites the total is no longer kept, and the group is
    re-centred: A'_i = B_i - mean(B). Without a positive part nothing moves (lambda 1).
    A lambda beyond double range is given as the largest double; the advantages are right all the same."""
    gains = {id: advantages[id] for id in factors if advantages[id] > 0}
    if not gains:
        return dict(advantages), 1.0, False
    top_gain, top_factor = max(gains.values()), max(factors[id] for id in gains)
    relative = {id: factors[id] / top_factor for id in gains}
    scale = math.fsum(gain / top_gain for gain in gains.values())
    scale /= math.fsum(relative[id] * (gain / top_gain) for id, gain in gains.items())
    lam = min(scale / top_factor, sys.float_info.max)
    if cap is not None and lam > cap:
        return _centred({**advantages, **{id: cap * factors[id] * gain for id, gain in gains.items()}}), cap, True
    return {**advantages, **{id: scale * relative[id] * gain for id, gain in gains.items()}}, lam, False


def downweight(advantages: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """B_i = f_i A_i on positive advantages of passing ids: the total shrinks. The ablation of the rescaling."""
    return {id: a * factors[id] if a > 0 and id in factors else a for id, a in advantages.items()}


def _centred(values: Mapping[str, float]) -> dict[str, float]:
    mean = math.fsum(values.values()) / len(values)
    return {id: value - mean for id, value in values.items()}
