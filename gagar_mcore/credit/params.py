"""The constants of the credit step."""

from dataclasses import dataclass
from typing import Literal, get_args

from gagar_mcore.credit.checks import Rule, check_fields, discount, finite, whole, within

Method = Literal["gagar", "grpo", "downweight_only"]
CRITERIA = ("approach", "precision", "minimality", "side_effects", "consistency")


@dataclass(frozen=True, slots=True)
class CreditParams:
    """Method and constants; the numbers are as reported for GAGAR. Raises ValueError naming the field.

    method: `gagar` discounts and rescales, `downweight_only` discounts without rescaling, `grpo` keeps the outcome advantage.
    cap: upper bound of lambda, None for none. min_valid: a group with fewer valid trajectories is dropped.
    weights: share of each of `CRITERIA` in the rank score W.
    t1_min: T1 needs every criterion at least this. t3_approach: approach up to this is T3.
    t3_minimality, t3_side_effects: both criteria up to these are T3.
    t1_top, t1_other: factors of the top tied group of T1 and of the rest of T1. t2_best, t2_worst: ends of the line of T2.
    t3: factor of T3.
    length_penalty: whether passing trajectories that are long for their group lose reward, in a form of our own (`length.py`).
    length_pass_rate: it applies to groups with a pass rate above this. length_percentile: the passing length (in percent) up to
    which nothing is taken. length_gamma: from this multiple of it on, all of `length_weight` is taken.
    group_size_correction: whether advantages are multiplied by n / (n - 1), our reading of a step not defined in public.
    """

    method: Method = "gagar"
    cap: float | None = 1.5
    min_valid: int = 2
    weights: tuple[float, float, float, float, float] = (0.30, 0.25, 0.20, 0.15, 0.10)
    t1_min: int = 4
    t3_approach: int = 1
    t3_minimality: int = 2
    t3_side_effects: int = 2
    t1_top: float = 1.0
    t1_other: float = 0.9
    t2_best: float = 0.85
    t2_worst: float = 0.4
    t3: float = 0.2
    length_penalty: bool = False
    length_pass_rate: float = 0.5
    length_percentile: float = 30.0
    length_weight: float = 0.2
    length_gamma: float = 1.5
    group_size_correction: bool = False

    def __post_init__(self) -> None:
        check_fields(self, RULES)


RULES: tuple[Rule, ...] = (
    ("method", lambda m: m in get_args(Method), "must be gagar, grpo or downweight_only"),
    ("cap", lambda c: c is None or (finite(c) and c >= 1), "must be a finite number of at least 1, or none"),
    ("min_valid", lambda n: whole(n) and n >= 2, "must be a whole number of at least 2"),
    (
        "weights",
        lambda w: isinstance(w, tuple) and len(w) == len(CRITERIA) and all(map(within(0, 1), w)),
        f"must be {len(CRITERIA)} numbers from 0 to 1",
    ),
    ("t1_min t3_approach t3_minimality t3_side_effects", lambda c: whole(c) and 1 <= c <= 5, "a criterion is 1, 2, 3, 4 or 5"),
    ("t1_top t1_other t2_best t2_worst t3", discount, "a discount factor lies in (0, 1]"),
    ("length_penalty group_size_correction", lambda switch: isinstance(switch, bool), "must be true or false"),
    ("length_pass_rate length_weight", within(0, 1), "must be a number from 0 to 1"),
    ("length_percentile", within(0, 100), "must be a number from 0 to 100"),
    ("length_gamma", lambda g: finite(g) and g > 1, "must be a finite number above 1"),
)
