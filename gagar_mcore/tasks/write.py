"""A generated task on disk, in the Harbor layout."""

import json
import shutil
from pathlib import Path

from gagar_mcore.tasks.generate import GeneratedTask

_DRIVER = Path(__file__).parent / "driver"

_TASK_TOML = """\
schema_version = "1.3"

[task]
name = "gagar/{id}"
description = "Repair one function"
authors = []
keywords = []

[metadata]
task_id = "{id}"
display_title = "Repair {function} in {file}"
category = "bug_fix"
language = "python"

[verifier]
network_mode = "no-network"
environment_mode = "separate"
timeout_sec = 60.0

[agent]
network_mode = "no-network"
timeout_sec = 300.0

[environment]
build_timeout_sec = 600.0
os = "linux"
cpus = 1
memory_mb = 512
storage_mb = 1024
gpus = 0
"""

_DOCKERFILE = """\
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
COPY app /app
WORKDIR /app
"""

_SOLVE = """\
#!/bin/sh
cd /app && git apply "$(dirname "$0")/fix.patch"
"""


def write_task(task: GeneratedTask, directory: Path) -> Path:
    """Write the task's folder `directory/ID` and return it; a folder of that name is replaced."""
    root = directory / task.id
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("environment/app", "tests", "solution"):
        (root / folder).mkdir(parents=True)
    for name, text in task.files.items():
        (root / "environment" / "app" / name).write_text(text)
    (root / "task.toml").write_text(_TASK_TOML.format(id=task.id, function=task.bug.function, file=task.bug.file))
    (root / "instruction.md").write_text(task.instruction + "\n")
    (root / "environment" / "Dockerfile").write_text(_DOCKERFILE)
    _write_tests(task, root / "tests")
    (root / "solution" / "fix.patch").write_text(fix_patch(task))
    write_script(root / "solution" / "solve.sh", _SOLVE)
    return root


def fix_patch(task: GeneratedTask) -> str:
    """The minimal repair as a unified diff in git's form."""
    bug = task.bug
    lines = task.files[bug.file].split("\n")[:-1]
    first, last = max(1, bug.line - 3), min(len(lines), bug.line + 3)
    before = [f" {line}" for line in lines[first - 1 : bug.line - 1]]
    after = [f" {line}" for line in lines[bug.line : last]]
    count = last - first + 1
    header = [f"diff --git a/{bug.file} b/{bug.file}", f"--- a/{bug.file}", f"+++ b/{bug.file}"]
    hunk = [f"@@ -{first},{count} +{first},{count} @@", *before, f"-{bug.buggy}", f"+{bug.fixed}", *after]
    return "\n".join(header + hunk) + "\n"


def _write_tests(task: GeneratedTask, tests: Path) -> None:
    cases = "".join(f"    {(c.id, c.module, c.function, c.arguments, c.expected)!r},\n" for c in task.cases)
    config = {
        "f2p_node_ids": [c.id for c in task.cases if c.fails],
        "p2p_node_ids": [c.id for c in task.cases if not c.fails],
        "inventory": {c.id: 0.0 for c in task.cases},
        "grade": {"format": "ctrf", "node_id": "name", "tool_label": "run_tests", "reports": ["/logs/verifier/report.json"]},
    }
    (tests / "cases.py").write_text(f"CASES = [\n{cases}]\n")
    (tests / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in ("run_tests.py", "confine.py"):
        shutil.copyfile(_DRIVER / name, tests / name)
    write_script(tests / "test.sh", (_DRIVER / "test.sh").read_text())


def write_script(path: Path, text: str) -> None:
    """A file that can be run."""
    path.write_text(text)
    path.chmod(0o755)
