"""What `gagar simulate` prints."""

import json
from dataclasses import asdict

from gagar_mcore.plan.simulate import KINDS, Simulation

DOUBLED = "with twice as many"


def simulation_json(simulation: Simulation) -> str:
    base = simulation.base
    return json.dumps(
        asdict(base) | {"step_s": base.step_s, "doubled": simulation.doubled, "bottleneck": simulation.bottleneck}, indent=1
    )


def simulation_text(name: str, simulation: Simulation) -> str:
    base, bottleneck = simulation.base, simulation.bottleneck
    dropped = "".join(f", {count:.4g} {reason}" for reason, count in base.dropped.items())
    late = f"; {base.late:.4g} gradings past grading.deadline_s" if base.late else ""
    lines = [
        f"{name}: a step takes {_clock(base.step_s)}, {_clock(base.collect_s)} of it to collect (mean of {base.steps})",
        f"{base.sessions:.6g} sessions, {base.turns:.6g} turns; groups: {base.kept:.4g} kept{dropped}{late}",
        "",
        f"{'':10}{'count':>8}{'at work':>9}{'mean wait':>11}" + (f"{DOUBLED:>20}" if simulation.doubled else ""),
    ]
    for kind in KINDS:
        use = base.uses[kind]
        more = f"{_clock(simulation.doubled[kind]):>20}" if simulation.doubled else ""
        lines.append(f"{kind:10}{use.count:8}{use.busy:9.1%}{_clock(use.waited_s):>11}{more}")
    return "\n".join([*lines, "", f"bottleneck: {_SESSIONS if bottleneck == 'sessions' else bottleneck}"])


_SESSIONS = "the longest sessions: more of no kind shortens the step by a hundredth"


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 120 else f"{minutes / 60:.3g} h"
