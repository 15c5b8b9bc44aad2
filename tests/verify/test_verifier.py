import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import NO_PATCH
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool, SandboxLost, SandboxSpec

WithPool = Callable[[Callable[[LocalPool], Any]], Any]


def verify(with_pool: WithPool, task: Task, patch: str, timeout_s: float = 30.0) -> Verification:
    result: Verification = with_pool(lambda pool: Verifier(pool, Limits(), timeout_s).verify(task, patch))
    return result


def solution(task: Task) -> str:
    return (task.directory / "solution" / "fix.patch").read_text()


def harmless(task: Task) -> str:
    return "diff --git a/new.txt b/new.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+text\n"


def set_tests(task: Task, script: str) -> None:
    (task.tests / "test.sh").write_text(f"#!/bin/bash\n{script}\n")


def test_the_solution_earns_the_reward(with_pool: WithPool, task: Task) -> None:
    result = verify(with_pool, task, solution(task))
    assert result.reward == 1.0 and result.infrastructure_error is None
    assert set(result.tests) == {*task.fail_to_pass, *task.pass_to_pass} and set(result.tests.values()) == {"passed"}


def test_a_patch_that_repairs_nothing_fails_exactly_the_tests_of_the_bug(with_pool: WithPool, task: Task) -> None:
    result = verify(with_pool, task, harmless(task))
    assert result.reward == 0.0 and result.infrastructure_error is None
    assert {name for name, status in result.tests.items() if status == "failed"} == set(task.fail_to_pass)
    assert "FAILED" in result.output


@pytest.mark.parametrize("patch", ["", " \n", f"{NO_PATCH}it is larger than 5 bytes\n"])
def test_no_patch_fails_without_a_run(task: Task, patch: str, with_pool: WithPool) -> None:
    class NoPool:
        async def acquire(self, spec: SandboxSpec) -> Any:
            raise AssertionError("a sandbox was asked for")

        async def close(self) -> None: ...

    result = with_pool(lambda _: Verifier(NoPool(), Limits(), 30.0).verify(task, patch))
    assert (result.reward, result.infrastructure_error) == (0.0, None)
    assert set(result.tests.values()) == {"missing"}


@pytest.mark.parametrize(
    "patch",
    [
        "nonsense",
        "diff --git a/none.py b/none.py\n--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/.git/config b/.git/config\nnew file mode 100644\n--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+x\n",
    ],
)
def test_a_patch_that_does_not_apply_fails(with_pool: WithPool, task: Task, patch: str) -> None:
    result = verify(with_pool, task, patch)
    assert (result.reward, result.infrastructure_error) == (0.0, None)
    assert "does not apply" in result.output


def test_a_listed_test_that_the_report_lacks_counts_as_failed(with_pool: WithPool, task: Task) -> None:
    result = verify(with_pool, replace(task, pass_to_pass=(*task.pass_to_pass, "core.absent[0]")), solution(task))
    assert result.reward == 0.0 and result.tests["core.absent[0]"] == "missing"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("[ -e new.txt ] && sleep 600; exec python3 -I -S /tests/run_tests.py", "timed out"),
        ("[ -e new.txt ] && kill -9 $$; exec python3 -I -S /tests/run_tests.py", "exit code 137"),
        ("[ -e new.txt ] && exit 0; exec python3 -I -S /tests/run_tests.py", "no usable report"),
        ("[ -e new.txt ] && exit 127; exec python3 -I -S /tests/run_tests.py", "no usable report"),
        (
            "[ -e new.txt ] && echo '{' > /logs/verifier/report.json && exit 0; exec python3 -I -S /tests/run_tests.py",
            "no usable",
        ),
        ("[ -e new.txt ] && mkdir /logs/verifier/report.json && exit 0; exec python3 -I -S /tests/run_tests.py", "no usable"),
    ],
)
def test_a_run_that_only_the_patch_breaks_has_failed(with_pool: WithPool, task: Task, script: str, reason: str) -> None:
    set_tests(task, script)
    result = verify(with_pool, task, harmless(task), timeout_s=8.0 if reason == "timed out" else 60.0)
    assert (result.reward, result.infrastructure_error) == (0.0, None)
    assert reason in result.output


def test_tests_that_do_not_run_without_a_patch_either_are_an_infrastructure_error(with_pool: WithPool, task: Task) -> None:
    set_tests(task, "exit 127")
    result = verify(with_pool, task, solution(task))
    assert result.reward == 0.0 and result.infrastructure_error is not None
    assert "untouched repository" in result.infrastructure_error


def test_a_pool_that_loses_every_sandbox_is_an_infrastructure_error(with_pool: WithPool, task: Task) -> None:
    async def closed(pool: LocalPool) -> Verification:
        await pool.close()
        return await Verifier(pool, Limits(), 30.0).verify(task, solution(task))

    result = with_pool(closed)
    assert result.reward == 0.0 and result.infrastructure_error is not None


def test_without_a_repository_the_tests_run_in_their_own_image(task: Task, with_pool: WithPool, tmp_path: Path) -> None:
    asked: list[SandboxSpec] = []

    class NoImages:
        async def acquire(self, spec: SandboxSpec) -> Any:
            asked.append(spec)
            raise SandboxLost("no images here")

        async def close(self) -> None: ...

    elsewhere = replace(task, repository=tmp_path / "none", image="x.org/agent:1", tests_image="x.org/tests:1")
    result = with_pool(lambda _: Verifier(NoImages(), Limits(), 30.0).verify(elsewhere, solution(task)))
    assert {(spec.base, spec.image) for spec in asked} == {(None, "x.org/tests:1")}
    assert result.infrastructure_error is not None and elsewhere.sandbox(Limits(), {}).image == "x.org/agent:1"


def test_a_sandbox_lost_once_is_tried_again(with_pool: WithPool, task: Task) -> None:
    class Unlucky:
        def __init__(self, pool: LocalPool) -> None:
            self.pool, self.losses = pool, 1

        async def acquire(self, spec: SandboxSpec) -> Any:
            if self.losses:
                self.losses -= 1
                raise SandboxLost("gone")
            return await self.pool.acquire(spec)

        async def close(self) -> None: ...

    result = with_pool(lambda pool: Verifier(Unlucky(pool), Limits(), 30.0).verify(task, solution(task)))
    assert result.reward == 1.0


def test_a_test_script_without_execute_permission_runs_in_bash(with_pool: WithPool, task: Task) -> None:
    set_tests(task, "[[ 1 ]] && exec python3 -I -S /tests/run_tests.py")
    (task.tests / "test.sh").chmod(0o644)
    assert verify(with_pool, task, solution(task)).reward == 1.0


def test_tests_of_the_repository_do_not_replace_those_of_the_task(with_pool: WithPool, task: Task, tmp_path: Path) -> None:
    shutil.copytree(task.tests, tmp_path / "before")
    patch = harmless(task).replace("new.txt", "tests/cases.py")
    assert verify(with_pool, task, patch).reward == 0.0
    assert (task.tests / "cases.py").read_text() == (tmp_path / "before" / "cases.py").read_text()
