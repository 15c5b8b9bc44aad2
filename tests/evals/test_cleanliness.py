import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gagar_mcore.agent.grammar import apply, parse
from gagar_mcore.evals.cleanliness import is_clean
from gagar_mcore.sft.demonstrations import demonstration
from gagar_mcore.tasks.generate import GeneratedTask, generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task
from gagar_mcore.tasks.write import write_task


def git_patch(before: dict[str, str], after: dict[str, str], folder: Path) -> str:
    for side, files in (("a", before), ("b", after)):
        (folder / side).mkdir(parents=True)
        for name, text in files.items():
            (folder / side / name).write_text(text)
    command = ["git", "diff", "--no-index", "--no-prefix", "--binary", "--no-renames", "a/", "b/"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def demonstrated(generated: GeneratedTask, index: int, failing: float, sloppy: float) -> dict[str, str]:
    files, view = dict(generated.files), None
    for text, _ in demonstration(generated, 1, index, failing, sloppy).turns:
        action = parse(text)
        effect = apply(action, view, files) if action else None
        assert effect is not None
        view = effect.view
        if effect.file is not None:
            files[effect.file] = effect.text
    return files


@pytest.fixture(scope="module")
def generated() -> GeneratedTask:
    return generate_task(1, 0)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, generated: GeneratedTask) -> Task:
    return load_task(write_task(generated, tmp_path_factory.mktemp("task")))


def test_minimal_repairs_are_clean_and_sloppy_ones_are_not(tmp_path: Path) -> None:
    for index in range(60):
        generated = generate_task(4, index)
        task = load_task(write_task(generated, tmp_path / "tasks"))
        sloppy = demonstrated(generated, index, 0.0, 1.0)
        assert is_clean(task, (task.directory / "solution" / "fix.patch").read_text())
        assert is_clean(task, git_patch(generated.files, generated.solution, tmp_path / f"clean-{index}"))
        assert not is_clean(task, git_patch(generated.files, sloppy, tmp_path / f"sloppy-{index}"))


def test_another_wording_of_the_same_line_is_clean(task: Task, generated: GeneratedTask, tmp_path: Path) -> None:
    text = generated.files[generated.bug.file].replace(generated.bug.buggy, generated.bug.fixed + " ", 1)
    assert is_clean(task, git_patch(generated.files, {**generated.files, generated.bug.file: text}, tmp_path / "d"))


def test_changes_elsewhere_are_not_clean(task: Task, generated: GeneratedTask, tmp_path: Path) -> None:
    bug = generated.bug
    lines = generated.solution[bug.file].split("\n")
    variants = {
        "another line": [*lines[:-1], "x = 1", ""],
        "a blank line beside it": [*lines[: bug.line], "", *lines[bug.line :]],
        "two lines for one": [*lines[: bug.line - 1], bug.fixed, bug.fixed, *lines[bug.line :]],
        "the wrong line": [*generated.files[bug.file].split("\n")[:-1], "x = 1", ""],
    }
    for number, changed in enumerate(variants.values()):
        after = {**generated.files, bug.file: "\n".join(changed)}
        assert not is_clean(task, git_patch(generated.files, after, tmp_path / str(number)))
    for number, name in enumerate(["notes.txt", "core2.py"]):
        assert not is_clean(task, git_patch(generated.files, {**generated.solution, name: ""}, tmp_path / f"new{number}"))


def test_the_same_change_to_another_file_is_not_clean(task: Task, generated: GeneratedTask) -> None:
    patch = (task.directory / "solution" / "fix.patch").read_text()
    assert not is_clean(task, patch.replace(generated.bug.file, "other.py"))
    assert not is_clean(task, patch + patch.replace(generated.bug.file, "other.py"))
    assert not is_clean(task, "")


def test_a_reference_of_any_bytes_is_read(task: Task, tmp_path: Path) -> None:
    (tmp_path / "solution").mkdir()
    reference = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-caf\xe9\n+tea\n"
    (tmp_path / "solution" / "fix.patch").write_bytes(reference)
    assert is_clean(replace(task, directory=tmp_path), reference.decode(errors="surrogateescape"))


HEADERS = [
    "diff --git a/core.py b/core.py",
    "--- a/core.py",
    "+++ b/core.py",
    "@@ -1,2 +1,2 @@",
    "@@ -3 +3 @@",
    "-x",
    "+x",
    " x",
    "\\",
    "",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.sampled_from(HEADERS) | st.text(max_size=30), max_size=12))
def test_any_text_has_an_answer(task: Task, lines: list[str]) -> None:
    assert is_clean(task, "\n".join(lines)) in (True, False)
