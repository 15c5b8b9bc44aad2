"""What a policy may see of a repository's history. The repositories are made by git here; all of ours runs in sandboxes."""

from pathlib import Path

import pytest
from committed_tasks import FIXED, committed, git, write_committed_task
from local_pool import with_pool

from gagar_mcore.tasks.history import History, clean_history, count_history
from gagar_mcore.tasks.load import HISTORY, load_task, missing_parts
from gagar_mcore.tasks.task import Task, TaskError


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return write_committed_task(tmp_path / "adding")


def counted(task: Task) -> History:
    return with_pool(lambda pool: count_history(task, pool))


def test_a_repository_of_the_base_and_its_past_may_be_seen(task: Task) -> None:
    assert counted(task).objects == counted(task).reachable == 6


LEAKS = {
    "a later commit on the branch": lambda app: committed(app, FIXED, "the fix"),
    "another branch": lambda app: (git(app, "checkout", "-q", "-b", "fix"), committed(app, FIXED, "the fix")),
    "a tag": lambda app: (committed(app, FIXED, "fix"), git(app, "tag", "v2"), git(app, "reset", "-q", "--hard", "HEAD~1")),
    "a reflog alone": lambda app: (committed(app, FIXED, "the fix"), git(app, "reset", "-q", "--hard", "HEAD~1")),
    "a stash": lambda app: ((app / "adding.py").write_text(FIXED), git(app, "stash", "-q")),
    "a loose object": lambda app: ((app / "x").write_text(FIXED), git(app, "hash-object", "-w", "x"), (app / "x").unlink()),
    "a remote": lambda app: git(app, "remote", "add", "origin", "https://example.org/adding"),
    "notes": lambda app: git(app, "notes", "add", "-m", "add, not subtract"),
    "a hook": lambda app: ((app / ".git/hooks").mkdir(exist_ok=True), (app / ".git/hooks/post-commit").write_text("echo")),
    "an unknown setting": lambda app: git(app, "config", "alias.fix", "show v2"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_reveals_more_is_found(task: Task, leak: str) -> None:
    LEAKS[leak](task.repository)
    assert counted(task).problem() is not None


def test_all_of_it_is_cleaned_and_the_files_stay(task: Task) -> None:
    base = task.base_commit
    for leak in reversed(LEAKS):
        LEAKS[leak](task.repository)
    text = (task.repository / "adding.py").read_text()
    cleaned = with_pool(lambda pool: clean_history(task, pool))
    assert cleaned.problem() is None and cleaned == counted(task) and cleaned.base == base
    assert git(task.repository, "log", "--format=%s") == "second\nfirst"
    assert (task.repository / "adding.py").read_text() == text
    assert (task.directory / HISTORY).is_file()


def test_a_cruft_pack_goes_too(task: Task) -> None:
    committed(task.repository, FIXED, "the fix")
    git(task.repository, "reset", "-q", "--hard", "HEAD~1")
    git(task.repository, "reflog", "expire", "--expire=now", "--all")
    git(task.repository, "repack", "-q", "-d", "--cruft")
    assert list(task.repository.glob(".git/objects/pack/*.mtimes")) and counted(task).problem() is not None
    assert with_pool(lambda pool: clean_history(task, pool)).objects == 6


def test_tags_before_the_base_stay(task: Task) -> None:
    git(task.repository, "tag", "-a", "v0", "-m", "zero", "HEAD~1")
    cleaned = with_pool(lambda pool: clean_history(task, pool))
    assert (cleaned.problem(), git(task.repository, "tag")) == (None, "v0")


def test_a_repository_without_the_base_commit_is_refused_and_left_alone(task: Task) -> None:
    config = task.tests / "config.json"
    config.write_text(config.read_text().replace(str(task.base_commit), "0" * 40))
    before = sorted(task.repository.rglob("*"))
    with pytest.raises(TaskError, match="git cannot read it"):
        with_pool(lambda pool: clean_history(load_task(task.directory), pool))
    assert sorted(task.repository.rglob("*")) == before
    assert "gagar tasks clean" in missing_parts(task)[0]
