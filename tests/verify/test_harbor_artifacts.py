"""Tasks whose sessions hand in an artifact that their tests take, as DeepSWE's do."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from committed_tasks import FIXED, write_committed_task

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.check import check_task
from gagar_mcore.tasks.commands import verify as verify_command
from gagar_mcore.tasks.history import clean_history
from gagar_mcore.tasks.task import Task, TaskError
from gagar_mcore.verify.patch import BASE, LEFT_OUT, NO_PATCH, extract_patch
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool

WithPool = Callable[[Callable[[LocalPool], Any]], Any]
COMMIT = "git config --global --add safe.directory /app; git -c user.name=a -c user.email=a@b commit -qam done"


@pytest.fixture
def committed_task(tmp_path: Path) -> Task:
    return write_committed_task(tmp_path / "adding")


def session(with_pool: WithPool, task: Task, script: str) -> tuple[str, Verification]:
    """What a session that runs `script` hands in, and what it earns."""

    async def body(pool: LocalPool) -> tuple[str, Verification]:
        sandbox = await pool.acquire(task.sandbox(Limits(), {BASE: task.repository}))
        result = await sandbox.exec(["bash", "-c", script], timeout_s=30)
        assert result.exit_code == 0, result.stderr
        patch = await extract_patch(sandbox, task)
        await sandbox.close()
        return patch, await Verifier(pool, Limits(), 30.0).verify(task, patch)

    result: tuple[str, Verification] = with_pool(body)
    return result


def mend(file: str = "adding.py") -> str:
    return f"cat > {file} <<'END'\n{FIXED}END\n"


def test_commits_are_handed_in_and_earn_the_reward(with_pool: WithPool, committed_task: Task) -> None:
    patch, verification = session(with_pool, committed_task, mend() + COMMIT)
    assert patch.startswith("diff --git a/adding.py b/adding.py")
    assert (verification.reward, verification.infrastructure_error, verification.suspicion) == (1.0, None, [])


def test_edits_that_were_not_committed_are_not_handed_in_and_the_report_says_so(
    with_pool: WithPool, committed_task: Task
) -> None:
    patch, verification = session(with_pool, committed_task, mend())
    assert patch == f"{LEFT_OUT}edits that were not committed, in adding.py\n"
    assert (verification.reward, verification.infrastructure_error) == (0.0, None)
    assert "not committed, in adding.py" in verification.output and "the patch is empty" in verification.output


def test_what_was_committed_counts_and_the_rest_is_named(with_pool: WithPool, committed_task: Task) -> None:
    patch, verification = session(with_pool, committed_task, mend() + COMMIT + "; echo x > new.txt; echo y >> adding.py")
    assert patch.startswith(f"{LEFT_OUT}edits that were not committed, in adding.py, new.txt\ndiff --git ")
    assert verification.reward == 1.0 and "new.txt" in verification.output


def test_a_repository_that_git_cannot_read_gives_no_patch(with_pool: WithPool, committed_task: Task) -> None:
    patch, verification = session(with_pool, committed_task, "rm -rf .git")
    assert patch.startswith(f"{NO_PATCH}verifier.collect: exit code 1") and verification.reward == 0.0


def test_tests_in_the_artifact_are_not_the_tasks(with_pool: WithPool, committed_task: Task) -> None:
    script = "echo 'import sys' > sitecustomize.py; git add -N sitecustomize.py; " + mend() + COMMIT
    patch, verification = session(with_pool, committed_task, script)
    assert "sitecustomize.py" in patch and verification.reward == 1.0
    assert "removed before the tests: 'sitecustomize.py'" in verification.output


@pytest.mark.parametrize("before", ["\n", "# x\n", "From: me\n\n"])
def test_what_stands_before_an_artifacts_first_change_hides_nothing(
    with_pool: WithPool, committed_task: Task, before: str
) -> None:
    """What the policy's git is told to print is what `collect` takes."""
    header = "diff --git a/sitecustomize.py b/sitecustomize.py\nnew file mode 100644\n--- /dev/null\n+++ b/sitecustomize.py\n"
    forge = f"{before}{header}@@ -0,0 +1 @@\n+raise SystemExit(0)\n"
    script = f"cat > /tmp/evil <<'END'\n{forge}END\ngit config diff.external 'cat /tmp/evil; true'\n" + mend() + COMMIT
    patch, verification = session(with_pool, committed_task, script)
    assert patch == forge
    assert verification.reward == 0.0 and "removed before the tests: 'sitecustomize.py'" in verification.output


def test_the_whole_task_is_checked_and_run_by_command(
    committed_task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], with_pool: WithPool
) -> None:
    async def check(pool: LocalPool) -> str:
        await clean_history(committed_task, pool)
        return str(await check_task(committed_task.directory, Verifier(pool, Limits(), 30.0)))

    assert with_pool(check) == "adding: ok, fails with the bug and passes with the solution"
    patch = tmp_path / "some.patch"
    patch.write_text("diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n")
    assert not asyncio.run(verify_command(committed_task.directory, patch))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["fail to pass: 0 of 1 passed", "pass to pass: 1 of 1 passed", "  failed: tests.adding.test_add"]
    assert lines[-1].startswith("reward 0 in ")
    with pytest.raises(TaskError, match=r"nowhere\.patch: No such file or directory; name a file that holds the patch"):
        asyncio.run(verify_command(committed_task.directory, tmp_path / "nowhere.patch"))
