"""Tasks that are not Python's, and tasks that only have a reward file."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.check import check_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool

WithPool = Callable[[Callable[[LocalPool], Any]], Any]

TOML = """
schema_version = "1.2"
[task]
name = "any/adding"
[metadata]
language = "{language}"
[environment]
memory_mb = 2048
"""
FIX = "diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-{old}\n+{new}\n"
JS_TEST = """
const fs = require("fs")
const { execSync } = require("child_process")
execSync(JSON.parse(fs.readFileSync("package.json")).scripts.test)
const add = require("/app/add.js")
const tests = [["add", add(1, 2) === 3], ["zero", add(0, 0) === 0]].map(([name, passed]) => ({
    name, suite: ["adding", "small"], status: passed ? "passed" : "failed", duration: 1 }))
const passed = tests.filter(test => test.status === "passed").length
const summary = { tests: 2, passed, failed: 2 - passed }
fs.writeFileSync("/logs/verifier/ctrf.json", JSON.stringify({ results: { summary, tests } }))
"""


def write_task(root: Path, language: str, files: dict[str, str], test: str, solution: str, config: object = None) -> Path:
    for folder in ("environment/app", "tests", "solution"):
        (root / folder).mkdir(parents=True)
    for name, text in files.items():
        (root / "environment/app" / name).write_text(text)
    (root / "task.toml").write_text(TOML.format(language=language))
    (root / "instruction.md").write_text("Mend add.\n")
    (root / "tests/test.sh").write_text(test)
    (root / "solution/fix.patch").write_text(solution)
    if config is not None:
        (root / "tests/config.json").write_text(json.dumps(config))
    return root


def verify(with_pool: WithPool, root: Path, patch: str) -> Verification:
    limits = Limits(memory_mb=2048, processes=128)
    result: Verification = with_pool(lambda pool: Verifier(pool, limits, 30.0).verify(load_task(root), patch))
    return result


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not at hand")
def test_a_task_in_javascript_reports_by_suite_and_its_scripts_cannot_be_changed(with_pool: WithPool, tmp_path: Path) -> None:
    files = {"add.js": "module.exports = (a, b) => a - b\n", "package.json": '{"scripts": {"test": "true"}}\n'}
    solution = FIX.format(file="add.js", old="module.exports = (a, b) => a - b", new="module.exports = (a, b) => a + b")
    grade = {"format": "ctrf", "node_id": "suite.name", "reports": ["/logs/verifier/ctrf.json"]}
    config = {"f2p_node_ids": ["adding.small.add"], "p2p_node_ids": ["adding.small.zero"], "grade": grade}
    root = write_task(tmp_path / "js", "javascript", files, "exec node /tests/run.js\n", solution, config)
    (root / "tests/run.js").write_text(JS_TEST)
    assert verify(with_pool, root, solution).reward == 1.0
    forge = FIX.format(
        file="package.json", old='{"scripts": {"test": "true"}}', new='{"scripts": {"test": "exit 1"}, "type": "x"}'
    )
    forged = verify(with_pool, root, forge)
    assert forged.reward == 0.0 and "restored before the tests: 'package.json'" in forged.output
    assert forged.tests == {"adding.small.add": "failed", "adding.small.zero": "passed"}


def test_without_a_list_of_tests_the_reward_file_decides(with_pool: WithPool, tmp_path: Path) -> None:
    test = '[ $(sh add.sh 1 2) = 3 ] && echo \'{"reward": 1, "style": 0.5}\' > /logs/verifier/reward.json\n'
    solution = FIX.format(file="add.sh", old="echo $(($1 - $2))", new="echo $(($1 + $2))")
    root = write_task(tmp_path / "sh", "shell", {"add.sh": "echo $(($1 - $2))\n"}, test, solution)
    other = FIX.format(file="add.sh", old="echo $(($1 - $2))", new="echo 0")
    assert verify(with_pool, root, solution).reward == 1.0
    nothing = verify(with_pool, root, other)
    assert nothing.reward == 0.0 and nothing.infrastructure_error is not None, "no reward for the untouched repository either"

    (root / "tests/test.sh").write_text(f"{test.rstrip()} || echo 0 > /logs/verifier/reward.txt\n")
    assert (verify(with_pool, root, other).reward, verify(with_pool, root, other).infrastructure_error) == (0.0, None)

    async def check() -> str:
        pool = LocalPool()
        try:
            return str(await check_task(root, Verifier(pool, Limits(), 30.0)))
        finally:
            await pool.close()

    assert asyncio.run(check()) == "adding: ok, fails with the bug and passes with the solution"
