"""Tasks whose repository is in their image alone: the session's changes, and their verification."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from committed_tasks import FIXED, committed, write_committed_task

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.load import missing_parts
from gagar_mcore.tasks.room import open_room
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import extract_patch
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool, Sandbox, SandboxSpec

WithPool = Callable[[Callable[[LocalPool], Any]], Any]


class PretendedImages:
    """Sandboxes of an image, which need a container engine or a cluster: here the host's system with the image's repository."""

    def __init__(self, pool: LocalPool, repository: Path) -> None:
        self.pool, self.repository = pool, repository

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        assert spec.base is None and spec.image == "x.org/task:1"
        return await self.pool.acquire(replace(spec, base=self.repository, image=None))

    async def close(self) -> None: ...


def test_a_policy_sees_nothing_of_an_images_history_that_its_base_commit_does_not_know(
    with_pool: WithPool, tmp_path: Path
) -> None:
    task = write_committed_task(tmp_path / "adding")
    committed(task.repository, FIXED, "the fix")
    repository = task.repository.rename(tmp_path / "of the image")
    task = replace(task, image="x.org/task:1", artifact=None)
    look = "git log --all --format=%s; git status --short; ls -a /tmp; git -C /var/tmp/base log --all --format=%s"

    async def session(pool: LocalPool) -> str:
        sandbox = await open_room(PretendedImages(pool, repository), task, Limits(), {})
        result = await sandbox.exec(["sh", "-c", f"git config --global safe.directory '*'; {look}"], timeout_s=60)
        return result.stdout.decode()

    assert with_pool(session).split() == ["second", "first", "M", "adding.py", ".", "..", ".gitconfig", "second", "first"]


def test_a_session_in_an_image_hands_in_its_changes_and_is_verified(with_pool: WithPool, task: Task, tmp_path: Path) -> None:
    solution = (task.directory / "solution" / "fix.patch").read_text()
    repository = task.repository.rename(tmp_path / "of the image")
    task = replace(task, image="x.org/task:1", tests_image="x.org/task:1")

    async def session(pool: LocalPool) -> tuple[str, Verification]:
        images = PretendedImages(pool, repository)
        sandbox = await open_room(images, task, Limits(), {})
        result = await sandbox.exec(["git", "apply", "-"], timeout_s=60, stdin=solution.encode())
        assert result.exit_code == 0, result.stderr
        await sandbox.write("conftest.py", b"raise SystemExit\n")
        patch = await extract_patch(sandbox, task)
        await sandbox.close()
        return patch, await Verifier(images, Limits(), 60.0).verify(task, patch)

    patch, verification = with_pool(session)
    assert "conftest.py" in patch and patch.count("diff --git") == 2
    assert verification.reward == 1.0 and "removed before the tests: 'conftest.py'" in verification.output
    assert missing_parts(task, images=True) == [] and missing_parts(task)[0].startswith("environment/app (")
