"""Groups, tasks and patches for the tests of grading."""

import difflib

from gagar_mcore.grading.workspace import write_workspace
from gagar_mcore.records.types import Trajectory, Turn, Verification
from gagar_mcore.tasks.task import Task

BASE = """\
def scale(x, y):
    out = x + y
    return out


def width(x):
    return max(x) - min(x)
"""
FIXED = BASE.replace("x + y", "x * y")
INSTRUCTION = "util.py: scale(3, 4) gives 7 not 12"


def file_diff(name, before, after):
    """A git diff of one file whose texts end in a newline; `before` None for a new one, `after` None for a deleted one."""
    old, new = (before or "").split("\n")[:-1], (after or "").split("\n")[:-1]
    header = [f"diff --git a/{name} b/{name}"]
    header += ["new file mode 100644"] if before is None else ["deleted file mode 100644"] if after is None else []
    hunks = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm=""))
    if before is None and hunks:
        hunks[0] = "--- /dev/null"
    if after is None and hunks:
        hunks[1] = "+++ /dev/null"
    return "".join(f"{line}\n" for line in [*header, *hunks])


def repair(after=FIXED, **new_files):
    """The patch of a session that left util.py as `after` and wrote `new_files` (dots as double underscores)."""
    return file_diff("util.py", BASE, after) + "".join(
        file_diff(n.replace("__", "."), None, f"{t}\n") for n, t in new_files.items()
    )


def turn(index, ok=True, action="view util.py scale", tool="view", observation="1:def scale(x, y):"):
    return Turn(index, action, tool if ok else "", observation if ok else "error", ok, "stop", 5, 0.1)


def trajectory(id, patch="", reward=1.0, turns=3, **changes):
    values = dict(
        id=id,
        group_id="g",
        task_id="t",
        member=0,
        token_ids=[],
        logprobs=[],
        loss_mask=[],
        weight_spans=[],
        turns=[turn(i) for i in range(turns)] if isinstance(turns, int) else turns,
        patch=patch,
        end_reason="finished",
        reward=reward,
        valid=True,
        verification=Verification(reward, {"util.scale[0]": "passed" if reward else "failed"}, "ran 1 test", 0.1),
    )
    return Trajectory(**values | changes)


def make_task(root, files=None, instruction=INSTRUCTION):
    """A task on disk with solution and tests, which no workspace may show."""
    for name, text in (files or {"util.py": BASE}).items():
        path = root / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder, secret in (("solution", "the minimal repair"), ("tests", "the hidden tests")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "secret.txt").write_text(secret)
    return Task("t", root, instruction, root / "environment", root / "tests", ("util.scale[0]",), ())


def make_workspace(root, *trajectories, files=None, instruction=INSTRUCTION):
    return write_workspace(root / "workspace", "g", make_task(root / "task", files, instruction), trajectories)
