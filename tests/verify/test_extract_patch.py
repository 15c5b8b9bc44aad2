import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.patch import MAX_PATCH_BYTES, NO_PATCH, extract_patch
from gagar_sandbox import Sandbox

InSession = Callable[[Callable[[Sandbox], Any]], Any]


def extract_after(in_session: InSession, task: Task, script: str) -> str:
    async def use(sandbox: Sandbox) -> str:
        result = await sandbox.exec(["bash", "-c", script], timeout_s=30)
        assert result.exit_code == 0, result.stderr
        return await extract_patch(sandbox, task)

    text: str = in_session(use)
    return text


def apply_to_copy(task: Task, patch: str, folder: Path) -> Path:
    subprocess.run(["cp", "-r", task.repository, folder], check=True)
    subprocess.run(["git", "apply", "-"], input=patch.encode(errors="surrogateescape"), cwd=folder, check=True)
    return folder


def test_an_untouched_repository_gives_an_empty_patch(in_session: InSession, task: Task) -> None:
    assert extract_after(in_session, task, "true") == ""


def test_the_patch_carries_every_kind_of_change(in_session: InSession, task: Task, tmp_path: Path) -> None:
    script = r"""
        first=$(ls | head -1); rm "$(ls | tail -1)"
        printf 'y = 1\r\nlast' >> "$first"; chmod +x "$first"
        mkdir -p deep/er; echo text > 'deep/er/a name
with a break'; printf 'x' > $'latin-\xe9'; printf '\0\1\2' > binary; printf 'caf\xe9\n' > latin.txt
        ln -s /etc/passwd link; : > empty
    """
    patch = extract_after(in_session, task, script)
    folder = apply_to_copy(task, patch, tmp_path / "copy")
    first, last = sorted(task.repository.iterdir())
    assert not (folder / last.name).exists()
    assert (folder / first.name).read_bytes() == first.read_bytes() + b"y = 1\r\nlast"
    assert (folder / first.name).stat().st_mode & 0o100
    assert (folder / "deep/er/a name\nwith a break").read_text() == "text\n"
    assert (folder / "binary").read_bytes() == b"\0\1\2"
    assert (folder / "latin.txt").read_bytes() == b"caf\xe9\n"
    assert (folder / "empty").read_bytes() == b""
    assert (folder / "link").readlink() == Path("/etc/passwd")
    assert b"latin-\xe9" in {bytes(path.name.encode(errors="surrogateescape")) for path in folder.iterdir()}


def test_attributes_settings_and_repositories_of_the_policy_change_nothing(in_session: InSession, task: Task) -> None:
    script = r"""
        git init -q . && git config diff.external 'echo forged' && git config core.fsmonitor 'echo forged'
        mkdir /tmp/.git; printf '[diff]\n external = echo forged\n' > ~/.gitconfig
        mkdir inner && cd inner && git init -q . && cd ..
        mkdir __pycache__ .pytest_cache; echo x > __pycache__/core.pyc; echo x > .pytest_cache/README.md
        mkfifo pipe; echo change >> "$(ls *.py | head -1)"
    """
    patch = extract_after(in_session, task, script)
    assert patch.startswith("diff --git a/") and patch.count("diff --git") == 1
    assert "+change\n" in patch and "forged" not in patch


def test_a_file_marked_as_binary_still_gives_a_patch_that_applies(in_session: InSession, task: Task, tmp_path: Path) -> None:
    patch = extract_after(in_session, task, r"echo '*.py -diff' > .gitattributes; echo change >> $(ls *.py | head -1)")
    folder = apply_to_copy(task, patch, tmp_path / "copy")
    assert sorted(folder.glob("*.py"))[0].read_text().endswith("change\n")


def test_a_patch_beyond_the_limit_is_refused_and_says_so(in_session: InSession, task: Task) -> None:
    patch = extract_after(in_session, task, f"head -c {2 * MAX_PATCH_BYTES} /dev/urandom > big")
    assert patch == f"{NO_PATCH}it is larger than {MAX_PATCH_BYTES} bytes\n"


def test_a_tree_that_cannot_be_read_is_refused_and_says_so(in_session: InSession, task: Task) -> None:
    patch = extract_after(in_session, task, "echo secret > locked; chmod 0 locked")
    assert patch.startswith(f"{NO_PATCH}error: ") and "locked" in patch and patch.count("\n") == 1


def test_a_workdir_that_was_emptied_gives_deletions(in_session: InSession, task: Task) -> None:
    patch = extract_after(in_session, task, "rm -rf ./*")
    assert patch.count("deleted file mode") == len(list(task.repository.iterdir()))
