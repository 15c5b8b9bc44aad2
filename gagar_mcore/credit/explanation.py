"""The way of one trajectory to its advantage: steps of arithmetic that add up, and a sentence."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import add, mul, sub
from typing import Any, Literal

from gagar_mcore.credit.params import Method
from gagar_mcore.records.types import DropReason

Operation = Literal["is", "plus", "minus", "times"]
OPERATIONS: dict[Operation, Callable[[Any, Any], Any]] = {"is": lambda _, b: b, "plus": add, "minus": sub, "times": mul}
TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Step:
    """`value` is what the operation makes of the value before and `operand`; `is` makes it `operand`."""

    name: str
    operation: Operation
    operand: float
    value: float
    words: str

    def follows(self, before: float) -> bool:
        """Whether the operation leads from `before` to `value`, to 1e-12 of the larger. A factor as large as a double can be
        stands for a larger one and is not followed."""
        if self.operation == "times" and self.operand == sys.float_info.max:
            return True
        made = OPERATIONS[self.operation](before, self.operand)
        scale = abs(self.value) if self.operation == "times" else max(abs(before), abs(self.operand))
        return abs(made - self.value) <= TOLERANCE * scale + math.ulp(0.0) * max(1.0, abs(self.operand))


@dataclass(frozen=True, slots=True)
class Explanation:
    """From reward to advantage. The constructor raises ValueError where the steps do not lead to `advantage`.

    advantage: None for an invalid trajectory, which has no steps, and in a dropped group, where they end with the reward.
    valid, passing: how many of the group are valid, and how many of those pass once hacks are zeroed. tier, factor: of a passing
    trajectory where a verdict was used. lam: lambda before the cap, bounded_lam after it; both 1 where nothing is redistributed.
    remark: why there is no advantage, or why it is not redistributed."""

    trajectory_id: str
    method: Method
    valid: int
    passing: int
    dropped: DropReason | None
    fallback: str | None
    hack: bool
    tier: int | None
    factor: float | None
    lam: float
    bounded_lam: float
    capped: bool
    steps: tuple[Step, ...]
    advantage: float | None
    remark: str | None

    def __post_init__(self) -> None:
        value: float | None = None
        for step in self.steps:
            if not step.follows(value or 0.0):
                raise ValueError(f"{self.trajectory_id}: step {step.name}: {step.value!r} does not follow from {value!r}")
            value = step.value
        if self.advantage is not None and value != self.advantage:
            raise ValueError(f"{self.trajectory_id}: the steps lead to {value!r}, not to the advantage {self.advantage!r}")

    @property
    def sentence(self) -> str:
        if self.advantage is None:
            return f"Trajectory {self.trajectory_id} has no advantage: {self.remark}."
        way = ", ".join(step.words for step in self.steps)
        remark = f"; {self.remark}" if self.remark else ""
        return f"Trajectory {self.trajectory_id} has advantage {self.advantage:+.6g}: {way}{remark}."
