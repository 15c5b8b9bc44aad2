"""Runs that are doubted and repeated, of tasks whose own script runs pytest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.load import load_task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool

WithPool = Callable[[Callable[[LocalPool], Any]], Any]

TOML = """
schema_version = "1.3"
[task]
name = "any/adding"
[environment]
memory_mb = 1024
[environment.env]
PYTHONPATH = "/opt/site-packages"
PYTEST_DISABLE_PLUGIN_AUTOLOAD = "1"
"""
SCRIPT = """#!/bin/sh
{before}
python3 -B -m pytest -q -p no:cacheprovider --junitxml=/logs/verifier/junit.xml /app/tests
exit 1
"""
FREE = "def test_a():\n    pass\n\n\ndef test_b():\n    pass\n"
BOUND = (
    "seen = []\n\n\ndef test_a():\n    seen.append(1)\n\n\ndef test_b():\n    assert seen\n\n\ndef test_c():\n    assert seen\n"
)
HARMLESS = "diff --git a/new.txt b/new.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+text\n"


def verify(with_pool: WithPool, root: Path, tests: str, before: str) -> Verification:
    """Of tests that all pass in their own order, and end with 1 all the same, which is odd."""
    for folder in ("environment/app/tests", "tests", "solution"):
        (root / folder).mkdir(parents=True)
    (root / "environment/app/tests/test_all.py").write_text(tests)
    (root / "environment/site").symlink_to(Path(pytest.__file__).parents[1])
    (root / "task.toml").write_text(TOML)
    (root / "instruction.md").write_text("Do it.\n")
    (root / "tests/test.sh").write_text(SCRIPT.format(before=before))
    ids = [f"tests.test_all.{line[4:10]}" for line in tests.splitlines() if line.startswith("def ")]
    grade = {"format": "junit", "reports": ["/logs/verifier/junit.xml"]}
    (root / "tests/config.json").write_text(json.dumps({"f2p_node_ids": ids, "p2p_node_ids": [], "grade": grade}))
    limits = Limits(memory_mb=1024, processes=64)
    result: Verification = with_pool(lambda pool: Verifier(pool, limits, 60.0).verify(load_task(root), HARMLESS))
    return result


def test_what_passes_in_one_order_alone_is_not_paid(with_pool: WithPool, tmp_path: Path) -> None:
    result = verify(with_pool, tmp_path / "task", BOUND, "")
    assert result.reward == 0.0 and any("came out differently in another order" in reason for reason in result.suspicion)


@pytest.mark.parametrize("before", ["", "export PYTHONPATH=/opt/site-packages"])
def test_what_passes_in_any_order_or_cannot_have_another_is(with_pool: WithPool, tmp_path: Path, before: str) -> None:
    result = verify(with_pool, tmp_path / "task", FREE, before)
    assert (result.reward, result.suspicion) == (1.0, ["every test is reported as passed, and the exit code is 1"]), result
