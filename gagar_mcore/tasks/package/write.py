"""A task from a package's own code and tests, on disk in the Harbor layout."""

import difflib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.tasks.package.fetch import Package
from gagar_mcore.tasks.package.instruction import write_instruction
from gagar_mcore.tasks.package.seed import Seed
from gagar_mcore.tasks.write import write_script

ENVIRONMENT = ".environment"  # beside the tasks: packages that all of them mount

_DRIVER = Path(__file__).parent.parent / "driver"
_TOML = """\
schema_version = "1.3"

[task]
name = "gagar/{id}"
description = "Mend {package} {version}"
authors = []
keywords = []

[metadata]
task_id = "{id}"
display_title = "Mend {package} {version}"
category = "bug_fix"
language = "python"
package = "{package}=={version}"

[verifier]
network_mode = "no-network"
environment_mode = "separate"
timeout_sec = {timeout_s}

[agent]
network_mode = "no-network"
timeout_sec = 3600.0

[environment]
build_timeout_sec = 600.0
os = "linux"
cpus = 1
memory_mb = 2048
storage_mb = 1024
gpus = 0

[environment.env]
PYTHONPATH = "{path}"
"""
_DOCKERFILE = """\
FROM python:{python}-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --target /opt/site-packages --requirement /tmp/requirements.txt \\
    && pip install --no-cache-dir --no-deps --target /opt/site-packages {package}=={version}
COPY app /app
WORKDIR /app
"""
_TEST = '#!/bin/sh\nexec python3 -I -S "$(dirname "$0")/run_pytest.py" "{source_root}"\n'
_SOLVE = '#!/bin/sh\ncd /app && git apply "$(dirname "$0")/fix.patch"\n'


@dataclass(frozen=True, slots=True)
class OwnTests:
    """A package's own tests. `inventory`: seconds of those that every run reports. `passing`: those that pass whatever their
    order. `unsteady`: beginnings of ids that differ from run to run. `reached`: what its code reaches for, as the runner saw."""

    inventory: Mapping[str, float]
    passing: Sequence[str]
    unsteady: Sequence[str] = ()
    reached: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests came out on the package with a bug: `failing` with their messages, by id; `passing`."""

    failing: Mapping[str, str]
    passing: Sequence[str]


def write_pristine(package: Package, root: Path, python: str, timeout_s: float) -> None:
    """The task without a bug, a solution and a list of tests: what the others are copies of."""
    app, tests = root / "environment" / "app", root / "tests"
    shutil.copytree(package.root, app, symlinks=True)
    (tests / "child").mkdir(parents=True)
    shutil.copytree(package.root / package.tests, tests / "suite" / package.tests, symlinks=True)
    for name in filter(None, (package.settings, "conftest.py")):
        if (package.root / name).is_file():
            shutil.copyfile(package.root / name, tests / "suite" / name)
    for name in ("run_pytest.py", "confine.py", *(f"child/{path.name}" for path in sorted((_DRIVER / "child").glob("*.py")))):
        shutil.copyfile(_DRIVER / name, tests / name)
    write_script(tests / "test.sh", _TEST.format(source_root=package.source_root))
    path = f"/opt/site-packages:/app/{package.source_root}".rstrip("/")
    details = {"package": package.name, "version": package.version, "timeout_s": timeout_s, "path": path}
    (root / "task.toml").write_text(_TOML.format(id=root.name, **details))
    (root / "instruction.md").write_text("Nothing is to be done.\n")
    (root / "environment" / "Dockerfile").write_text(_DOCKERFILE.format(python=python, **details))
    (root / "environment" / "requirements.txt").write_text("\n".join(package.requirements) + "\n")
    os.symlink(f"../../{ENVIRONMENT}/site", root / "environment" / "site")


def write_seeded(package: Package, pristine: Path, root: Path, file: str, seed: Seed) -> None:
    """A copy of the pristine task with the bug in `file`, and its repair."""
    shutil.copytree(pristine, root, symlinks=True)
    toml = root / "task.toml"
    toml.write_text(
        toml.read_text()
        .replace(f'"gagar/{pristine.name}"', f'"gagar/{root.name}"')
        .replace(f'task_id = "{pristine.name}"', f'task_id = "{root.name}"')
    )
    fixed = (package.root / file).read_text(encoding="utf-8")
    (root / "environment" / "app" / file).write_text(seed.text, encoding="utf-8")
    (root / "solution").mkdir()
    (root / "solution" / "fix.patch").write_text(repair(file, seed.text, fixed), encoding="utf-8")
    write_script(root / "solution" / "solve.sh", _SOLVE)


def write_outcome(package: Package, root: Path, outcome: Outcome, own: OwnTests, bug: Seed) -> None:
    """The lists of tests and the instruction; the files of the failing tests go from what the policy sees."""
    suite = root / "tests" / "suite"
    for name in {name.partition("::")[0] for name in outcome.failing}:
        (root / "environment" / "app" / name).unlink(missing_ok=True)
    config = {
        "f2p_node_ids": sorted(outcome.failing),
        "p2p_node_ids": sorted(outcome.passing),
        "grade": {"format": "ctrf", "node_id": "name", "tool_label": "run_pytest", "reports": ["/logs/verifier/report.json"]},
        "inventory": {name: round(seconds, 4) for name, seconds in sorted(own.inventory.items())},
        "unsteady": list(own.unsteady),
        "reached": list(own.reached),
    }
    (root / "tests" / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    text = write_instruction(package.name, package.version, suite, package.tests, outcome.failing)
    (root / "instruction.md").write_text(text, encoding="utf-8")
    bug_file = {"kind": bug.kind, "function": bug.function, "line": bug.line}
    (root / "solution" / "bug.json").write_text(json.dumps(bug_file) + "\n")


def repair(file: str, buggy: str, fixed: str) -> str:
    lines = difflib.unified_diff(buggy.splitlines(True), fixed.splitlines(True), f"a/{file}", f"b/{file}")
    return f"diff --git a/{file} b/{file}\n" + "".join(lines)
