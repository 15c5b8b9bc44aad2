"""The credit of one group in rational arithmetic, written from the formulas alone: nothing of the product is imported."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Length:
    turns: float
    input_tokens: float
    output_tokens: float

    def all(self):
        return self.turns, self.input_tokens, self.output_tokens


@dataclass(frozen=True)
class Member:
    id: str
    reward: float
    valid: bool = True
    lengths: Length | None = None


def group(*rewards, invalid=()):
    """Members t1, t2, ... with these rewards."""
    return [Member(f"t{i}", r, f"t{i}" not in invalid) for i, r in enumerate(rewards, start=1)]


def exact_advantages(members, factors, hacks, params):
    """Fraction by id, {} for a dropped group; `factors` of the passing ids that are no hack, None for no verdict."""
    valid = [m for m in members if m.valid]
    n = len(valid)
    reward = [Fraction(m.reward) * (m.id not in hacks) for m in valid]
    passing = [i for i in range(n) if reward[i] > 0]
    if n < params.min_valid or len(passing) in (0, n):
        return {}
    if params.length_penalty and Fraction(len(passing), n) > Fraction(params.length_pass_rate):
        excess = penalty_share([valid[i].lengths.all() for i in passing], params)
        for i, share in zip(passing, excess, strict=True):
            reward[i] -= Fraction(params.length_weight) * share
    total = sum(reward)
    advantage = [(n * r - total) / n for r in reward]
    gaining = [i for i in passing if advantage[i] > 0]
    if factors is not None and params.method != "grpo" and gaining:
        f = {i: Fraction(factors[valid[i].id]) for i in gaining}
        scale = Fraction(1)
        if params.method == "gagar":
            scale = sum(advantage[i] for i in gaining) / sum(f[i] * advantage[i] for i in gaining)
            scale = scale if params.cap is None else min(scale, Fraction(params.cap))
        for i in gaining:
            advantage[i] *= scale * f[i]
        if params.method == "gagar":  # the outcome advantages sum to 0: what does not any more is what the cap took
            lost = sum(advantage)
            advantage = [a - lost / n for a in advantage]
    if params.group_size_correction:
        advantage = [a * n / (n - 1) for a in advantage]
    return {m.id: a for m, a in zip(valid, advantage, strict=True)}


def penalty_share(lengths, params):
    """min(1, max(0, len / len_p - 1) / (gamma - 1)) of each of the passing, the largest over the three kinds of length."""
    shares = [Fraction(0)] * len(lengths)
    for kind in zip(*lengths, strict=True):
        reference = interpolated(sorted(map(Fraction, kind)), Fraction(params.length_percentile) / 100)
        if reference == 0:
            continue
        over = [max(Fraction(0), Fraction(length) / reference - 1) / (Fraction(params.length_gamma) - 1) for length in kind]
        shares = [max(share, min(Fraction(1), o)) for share, o in zip(shares, over, strict=True)]
    return shares


def interpolated(ordered, quantile):
    place = quantile * (len(ordered) - 1)
    weights = [max(Fraction(0), 1 - abs(place - i)) for i in range(len(ordered))]
    return sum(w * value for w, value in zip(weights, ordered, strict=True))


def close(found, expected, tolerance=Fraction(1, 10**12)):
    """Whether every value agrees to `tolerance` of the group's largest, or as far as doubles reach."""
    bound = tolerance * max((abs(v) for v in expected.values()), default=0) + Fraction(5e-324)
    return found.keys() == expected.keys() and all(abs(Fraction(found[id]) - expected[id]) <= bound for id in expected)
