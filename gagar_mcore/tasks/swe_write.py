"""A record of SWE-bench or SWE-smith as a task directory in the Harbor layout."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gagar_mcore.tasks.swe import DIFF_HEADER, SweRecord, reverse, test_files
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.verify.logs import find_parser, swebench

PYTEST = "python -m pytest -rA --tb=no -p no:cacheprovider"
GO_TEST = "go test -v"
RUNNERS = {"sympy/sympy": ("bin/test", "sympy/testing/runtests.py", "sympy/utilities/runtests.py")}  # which the repository brings

_TOML = """\
schema_version = "1.3"

[task]
name = {name}
description = ""
authors = []
keywords = []

[metadata]
task_id = {id}
language = {language}
repository = {repository}

[verifier]
network_mode = "no-network"
environment_mode = "separate"
timeout_sec = 1800.0

[agent]
network_mode = "no-network"
timeout_sec = 5400.0

[environment]
docker_image = {image}
workdir = {workdir}
os = "linux"
cpus = 2
memory_mb = 8192
storage_mb = 20480
gpus = 0
"""
_TEST = """\
#!/bin/bash
exec 2>&1
if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi
cd {workdir} || exit 1
{prepare}echo '>>>>> Start Test Output'
{command}
code=$?
echo '>>>>> End Test Output'
exit $code
"""


@dataclass(frozen=True, slots=True)
class Directives:
    """How a record's tests are run, and which of SWE-bench's parsers reads what they print."""

    command: str
    parser: str


def directives(record: SweRecord) -> Directives:
    """Raises TaskError where SWE-bench knows no way."""
    files = test_files(record)
    if record.smith or (record.pro and record.repo_language == "python"):
        return Directives(f"{PYTEST} {shlex.join(sorted({name.partition('::')[0] for name in files}))}", "parse_log_pytest")
    if record.pro and record.repo_language == "go":
        folders = sorted({f"./{PurePosixPath(name).parent}" for name in files if name.endswith(".go")}) or ["./..."]
        return Directives(f"{GO_TEST} {shlex.join(folders)}", "parse_log_gotest")
    if record.pro:
        raise TaskError(f"{record.instance_id}: tests in {record.repo_language} are run by a script that is not in the record")
    constants = swebench("harness.constants")
    specs: dict[str, Any] = constants.MAP_REPO_VERSION_TO_SPECS.get(record.repo, {}).get(record.version, {})
    if "test_cmd" not in specs:
        raise TaskError(f"{record.instance_id}: SWE-bench does not know how {record.repo} {record.version} is tested")
    files = [name for name in files if not name.endswith(tuple(constants.NON_TEST_EXTS))]
    if record.repo == "django/django":
        files = [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in files]
    commands = specs["test_cmd"] if isinstance(specs["test_cmd"], list) else [specs["test_cmd"]]
    before = [command for command in specs.get("eval_commands", []) if "{" not in command]
    return Directives("\n".join([*before, *commands[:-1], f"{commands[-1]} {shlex.join(files)}"]), record.repo)


def guarded(record: SweRecord, solution: str) -> list[str]:
    """The files that its tests come to, and what runs them, but for what the solution itself changes."""
    own = [*re.findall(DIFF_HEADER, record.test_patch, re.MULTILINE), *RUNNERS.get(record.repo, ())]
    return [path for path in own if path not in re.findall(DIFF_HEADER, solution, re.MULTILINE)]


def write_swe_task(record: SweRecord, directory: Path) -> Path:
    """Write the folder `directory/INSTANCE_ID`, which must not exist, and return it. Its repository is that of the image.
    Raises TaskError where the record lacks what its tests need."""
    if record.lacks:
        raise TaskError(f"{record.instance_id}: has no {', '.join(record.lacks)}; take the record from the full data set")
    try:
        how, solution = directives(record), reverse(record.patch) if record.smith else record.patch
        find_parser(how.parser)
    except ValueError as error:
        raise TaskError(f"{record.instance_id}: {error}") from error
    root = directory / record.instance_id
    for folder in ("environment", "tests", "solution"):
        (root / folder).mkdir(parents=True)
    name = f"swe/{record.instance_id}"
    quoted = {"name": name, "id": record.instance_id, "language": record.repo_language, "repository": record.repo}
    quoted |= {"image": record.container, "workdir": record.workdir}
    toml = {key: json.dumps(value) for key, value in quoted.items()}
    (root / "task.toml").write_text(_TOML.format(**toml))
    (root / "instruction.md").write_text(record.problem_statement.strip() + "\n", encoding="utf-8")
    config = {
        "base_commit": record.base_commit,
        "f2p_node_ids": list(dict.fromkeys(record.fail_to_pass)),
        "p2p_node_ids": [name for name in dict.fromkeys(record.pass_to_pass) if name not in set(record.fail_to_pass)],
        "grade": {"format": "log", "parser": how.parser, "reports": []},
        "guarded": guarded(record, solution),
    }
    (root / "tests" / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    prepare = ""
    if record.test_patch:
        (root / "tests" / "test.patch").write_text(record.test_patch, encoding="utf-8")
        prepare = "git apply --whitespace=nowarn /tests/test.patch || exit 1\n"
    (root / "tests" / "test.sh").write_text(
        _TEST.format(workdir=record.workdir, prepare=prepare, command=how.command), encoding="utf-8"
    )
    (root / "tests" / "test.sh").chmod(0o755)
    (root / "solution" / "fix.patch").write_text(solution, encoding="utf-8")
    return root
