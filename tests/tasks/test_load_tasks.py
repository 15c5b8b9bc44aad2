import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gagar_mcore.tasks.generate import GeneratedTask, generate_task
from gagar_mcore.tasks.load import load_task, load_tasks, missing_parts
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.tasks.write import write_task

HARBOR = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "harbor"
GENERATED = generate_task(1, 0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_task(GENERATED, tmp_path)


def test_a_written_task_is_loaded_again(directory: Path) -> None:
    task = load_task(directory)
    assert (task.id, task.instruction, task.language) == (GENERATED.id, GENERATED.instruction, "python")
    assert {p.name: p.read_text() for p in task.repository.iterdir()} == GENERATED.files
    assert set(task.fail_to_pass) == {case.id for case in GENERATED.cases if case.fails}
    assert set(task.pass_to_pass) == {case.id for case in GENERATED.cases if not case.fails}
    assert (task.verifier_timeout_s, task.agent_timeout_s, task.memory_mb) == (60.0, 300.0, 512)
    assert missing_parts(task) == []


def test_writing_again_replaces_what_was_there(directory: Path) -> None:
    (directory / "environment" / "app" / "stray.py").write_text("x")
    write_task(GENERATED, directory.parent)
    assert missing_parts(load_task(directory)) == []
    assert not (directory / "environment" / "app" / "stray.py").exists()


def test_the_solution_scripts_are_git_patches(tmp_path: Path) -> None:
    for index in range(20):
        task: GeneratedTask = generate_task(2, index)
        root = write_task(task, tmp_path)
        app = root / "environment" / "app"
        subprocess.run(["git", "apply", root / "solution" / "fix.patch"], cwd=app, check=True)
        assert {p.name: p.read_text() for p in app.iterdir()} == task.solution
        assert all((root / script).stat().st_mode & 0o100 for script in ("solution/solve.sh", "tests/test.sh"))


def edit_toml(old: str, new: str) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "task.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return edit


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "tests" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "task.toml").unlink(), "task.toml: missing"),
        (lambda d: (d / "task.toml").write_text("a = ["), "task.toml: does not parse"),
        (lambda d: (d / "task.toml").write_bytes(b"\xff"), "task.toml: not UTF-8"),
        (edit_toml('schema_version = "1.3"', 'schema_version = "2.0"'), "task.toml: schema_version: .*got '2.0'"),
        (edit_toml('schema_version = "1.3"', ""), "task.toml: schema_version: field required"),
        (edit_toml("timeout_sec = 60.0", "timeout_sec = -1"), "task.toml: verifier.timeout_sec: .*greater than 0"),
        (edit_toml(f'task_id = "{GENERATED.id}"', 'task_id = "../x"'), "task.toml: metadata.task_id: '../x' must be"),
        (edit_toml("memory_mb = 512", 'memory_mb = "many"'), "task.toml: environment.memory_mb"),
        (lambda d: (d / "instruction.md").unlink(), "instruction.md: missing"),
        (lambda d: (d / "instruction.md").write_text(" \n"), "instruction.md: empty"),
        (lambda d: (d / "tests/config.json").unlink(), "config.json: missing"),
        (lambda d: (d / "tests/config.json").write_text("{"), "config.json: does not parse"),
        (lambda d: (d / "tests/config.json").write_text("[]"), "config.json: file: "),
        (edit_config(f2p_node_ids=[]), "config.json: f2p_node_ids: "),
        (edit_config(p2p_node_ids=[1]), r"config.json: p2p_node_ids.0: .*got '1'"),
        (edit_config(p2p_node_ids=["a", "a"]), "config.json: 'a' is listed twice"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_in_one_line(
    directory: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(directory)
    with pytest.raises(TaskError, match=message) as caught:
        load_task(directory)
    assert "\n" not in str(caught.value) and str(directory) in str(caught.value)


@pytest.mark.parametrize("part", ["environment/app", "tests/test.sh", "solution/fix.patch"])
def test_a_missing_part_is_named_and_refused_where_the_task_is_to_run(directory: Path, part: str) -> None:
    path = directory / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert [line.split(" ")[0] for line in missing_parts(load_task(directory))] == [part]
    with pytest.raises(TaskError, match=f"cannot be run, missing: {part}"):
        load_tasks(directory.parent)
    assert len(load_tasks(directory.parent, runnable=False)) == 1


def test_a_repository_with_history_is_refused(directory: Path) -> None:
    (directory / "environment/app/sub/.git").mkdir(parents=True)
    assert missing_parts(load_task(directory)) == ["environment/app without .git (remove it: history can reveal the solution)"]


def test_a_folder_is_loaded_by_name_and_a_task_alone(tmp_path: Path) -> None:
    for index in (3, 1, 2):
        write_task(generate_task(1, index), tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README").write_text("text")
    assert [task.id for task in load_tasks(tmp_path)] == ["bug-1-00001", "bug-1-00002", "bug-1-00003"]
    assert [task.id for task in load_tasks(tmp_path / "bug-1-00002")] == ["bug-1-00002"]


def test_no_tasks_and_doubled_ids_are_refused(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="holds no task"):
        load_tasks(tmp_path / "empty")
    with pytest.raises(TaskError, match="no such directory"):
        load_tasks(tmp_path / "gone")
    (tmp_path / "empty").rmdir()
    shutil.copytree(directory, tmp_path / "copy")
    with pytest.raises(TaskError, match=f"two tasks have the id '{GENERATED.id}'"):
        load_tasks(tmp_path)


@pytest.mark.skipif(not HARBOR.is_dir(), reason="the sample of real Harbor tasks is not at hand")
def test_tasks_of_deepswe_are_read_and_what_they_lack_is_said() -> None:
    tasks = {task.id: task for task in load_tasks(HARBOR, runnable=False)}
    assert len(tasks) == 5
    csstree = tasks["csstree-shorthand-expansion-compression"]
    assert (len(csstree.fail_to_pass), len(csstree.pass_to_pass), csstree.language) == (79, 16715, "javascript")
    assert (csstree.agent_timeout_s, csstree.verifier_timeout_s, csstree.memory_mb) == (5400.0, 1800.0, 8192)
    assert all(len(missing_parts(task)) == 3 for task in tasks.values())
