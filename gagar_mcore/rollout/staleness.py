"""How old the weights are that a trajectory was sampled with."""

from dataclasses import dataclass, replace

from gagar_mcore.records.types import Trajectory


@dataclass(slots=True)
class Staleness:
    """`version`: the newest weights; `most`: how many versions behind them the oldest token may be, None for any number."""

    most: int | None = None
    version: int = 0

    def of(self, trajectory: Trajectory) -> int:
        """0 where nothing was generated."""
        return max((self.version - span.version for span in trajectory.weight_spans), default=0)

    def checked(self, trajectory: Trajectory) -> Trajectory:
        """Itself, invalid where it is too old."""
        if not trajectory.valid or self.most is None or (behind := self.of(trajectory)) <= self.most:
            return trajectory
        detail = f"its oldest tokens are {behind} versions behind weights {self.version}"
        return replace(trajectory, valid=False, invalid_reason="stale", invalid_detail=detail)
