"""Rules on how a trajectory went: bad calls, detours, its end, and tests that did not pass."""

from collections.abc import Iterator

from gagar_mcore.grading.citations import test_citation, turn_citation
from gagar_mcore.grading.findings import Finding
from gagar_mcore.records.types import Trajectory

SOME = 0.1
MOST = 0.5
MIN_MOST = 3
MANY_RATIO = 2
MANY_EXTRA = 3


def process_findings(trajectory: Trajectory, fewest_turns: int) -> Iterator[Finding]:
    """`fewest_turns`: of the passing trajectories of the group."""
    turns = trajectory.turns
    bad = [turn.index for turn in turns if not turn.ok]
    if len(bad) >= MIN_MOST and len(bad) >= MOST * len(turns):
        yield Finding("mostly_bad_calls", turn_citation(bad[0]))
    elif len(bad) > SOME * len(turns):
        yield Finding("some_bad_calls", turn_citation(bad[0]))
    if len(turns) >= MANY_RATIO * fewest_turns and len(turns) >= fewest_turns + MANY_EXTRA:
        yield Finding("many_turns", turn_citation(turns[-1].index))
    if turns and trajectory.end_reason != "finished":
        yield Finding("cut_off", turn_citation(turns[-1].index))
    results = trajectory.verification.tests if trajectory.verification else {}
    yield from (Finding("failed_test", test_citation(id)) for id, status in results.items() if status != "passed")
