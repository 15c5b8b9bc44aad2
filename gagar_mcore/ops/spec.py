"""Which policy loss, and its constants."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

LossName = Literal["mimo", "ppo", "gspo", "cispo"]
Bounds = tuple[float, float]
LOSSES: tuple[LossName, ...] = get_args(LossName)
DEFAULT_BOUNDS: dict[LossName, Bounds] = {
    "mimo": (0.2, 5.0),
    "ppo": (0.8, 1.2),
    "gspo": (1 - 3e-4, 1 + 4e-4),
    "cispo": (0.0, 5.0),
}


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A policy loss over the ratio r of the trained policy to the one that a token's old log-prob comes from.

    positive_bounds, negative_bounds: lowest and highest r at advantages >= 0 and < 0; None is the loss's own default. `mimo`
    masks outside them, `ppo` and `gspo` clip pessimistically, `cispo` clips the weight of the gradient.
    dual_clip: `ppo` alone bounds the loss of a negative advantage by this many times its size; None switches it off.
    tis_cap: truncated importance sampling, upper bound of the ratio of old to rollout policy, for all but `mimo`.
    kl_coef: weight of the k3 estimate of KL(policy || reference).
    Raises ValueError that names the field.
    """

    name: LossName = "mimo"
    positive_bounds: Bounds | None = None
    negative_bounds: Bounds | None = None
    dual_clip: float | None = 3.0
    tis_cap: float | None = None
    kl_coef: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise ValueError(f"name: must be one of {', '.join(LOSSES)}, got {self.name!r}")
        for field in ("positive_bounds", "negative_bounds"):
            bounds = getattr(self, field)
            if bounds is not None and not 0 <= bounds[0] <= 1 <= bounds[1] < math.inf:
                raise ValueError(f"{field}: must enclose 1, from at least 0 to a finite number, got {bounds!r}")
        if self.dual_clip is not None and not 1 < self.dual_clip < math.inf:
            raise ValueError(f"dual_clip: must be a finite number above 1, or none, got {self.dual_clip!r}")
        if self.tis_cap is not None and not (self.name != "mimo" and 0 < self.tis_cap < math.inf):
            raise ValueError(
                f"tis_cap: is a finite number above 0, and mimo takes its ratio to the rollout already; got {self.tis_cap!r} "
                f"with {self.name}"
            )
        if not 0 <= self.kl_coef < math.inf:
            raise ValueError(f"kl_coef: must be a finite number of at least 0, got {self.kl_coef!r}")

    @property
    def bounds(self) -> tuple[Bounds, Bounds]:
        """Of the ratio at advantages >= 0 and < 0, the loss's own where none are given."""
        default = DEFAULT_BOUNDS[self.name]
        positive = default if self.positive_bounds is None else self.positive_bounds
        return positive, default if self.negative_bounds is None else self.negative_bounds
